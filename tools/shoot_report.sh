#!/usr/bin/env bash
# Pictures of a study's page in docs/images: on a desktop, on a phone (390 px), and the first page as it is printed.
#
#     tools/shoot_report.sh DIR        DIR: a folder that `butterfly study run -o DIR` wrote
#
# Needs Debian's chromium, poppler-utils and imagemagick.
set -euo pipefail
page=$(realpath "$1")/report.html
images=$(dirname "$0")/../docs/images
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$images"

browser() { chromium --headless --no-sandbox --disable-gpu --hide-scrollbars "$@" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }; }
small() { convert "$1" -colors 64 -strip "PNG8:$2"; }

browser --screenshot="$scratch/desktop.png" --window-size=1280,1500 "file://$page"
small "$scratch/desktop.png" "$images/study_desktop.png"
# A window is at least 500 px wide; a frame is as wide as a phone.
echo "<body style=\"margin:0\"><iframe src=\"file://$page\" style=\"width:390px;height:2400px;border:0\"></iframe></body>" >"$scratch/phone.html"
browser --allow-file-access-from-files --screenshot="$scratch/phone.png" --window-size=500,2400 "file://$scratch/phone.html"
convert "$scratch/phone.png" -crop 390x2400+0+0 +repage -crop 390x1200 +repage +append "$scratch/phone_two.png"
small "$scratch/phone_two.png" "$images/study_phone.png"
browser --no-pdf-header-footer --print-to-pdf="$scratch/page.pdf" "file://$page"
pdftoppm -r 60 -png "$scratch/page.pdf" "$scratch/print"
montage $(ls "$scratch"/print-*.png | head -3) -tile 3x1 -geometry +6+6 -background grey "$scratch/print.png"
small "$scratch/print.png" "$images/study_print.png"
ls -l "$images"/study_*.png
