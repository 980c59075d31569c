#!/usr/bin/env bash
# Prints the Secret of job.yaml: a new cluster's credentials for each of its ranks, rank 0 as the coordinator.
#   examples/deploy/kubernetes/credentials.sh 4 FOLDER | kubectl apply -f -
# FOLDER is made, and keeps the cluster's authority: it never goes to Kubernetes. Keep it to renew or revoke.
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: credentials.sh RANKS FOLDER" >&2; exit 2; }
ranks=$1 folder=$2
butterfly=${BUTTERFLY:-butterfly}
[ ! -e "$folder" ] || { echo "credentials.sh: $folder exists, and holds another cluster's authority" >&2; exit 2; }

mkdir -m 700 -p "$folder"
"$butterfly" cluster init "$folder/0" >&2
"$butterfly" cluster admit --listen 127.0.0.1:0 --credentials "$folder/0" &> "$folder/admit.log" &
admit=$!
trap 'kill $admit' EXIT
address=
for _ in $(seq 100); do
  address=$(grep -om1 '127\.0\.0\.1:[0-9]*' "$folder/admit.log") && break
  sleep 0.1
done
[ -n "$address" ] || { echo "credentials.sh: nothing admits nodes: $(cat "$folder/admit.log")" >&2; exit 2; }
for ((rank = 1; rank < ranks; ++rank)); do
  "$butterfly" cluster token --expires 10m --credentials "$folder/0" |
    "$butterfly" cluster enroll "$address" - --name "rank-$rank" --credentials "$folder/$rank" >&2
done

echo "apiVersion: v1
kind: Secret
metadata:
  name: butterfly-train
type: Opaque
data:"
for ((rank = 0; rank < ranks; ++rank)); do
  for file in node.key node.pem ca.pem crl.pem; do
    echo "  $rank.$file: $(base64 -w 0 "$folder/$rank/$file")"
  done
done
