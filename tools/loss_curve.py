#!/usr/bin/env python3
"""Draws the losses of a training run's log (`butterfly train --log-file`) as an SVG picture.

    python3 tools/loss_curve.py log.jsonl loss.svg
"""

import json
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 400, 56, 20, 16, 44
WINDOW = 20  # steps that a point of the training curve is the mean of


def curves(log: Path):
    """((steps done, mean training loss), ...), ((steps done, validation loss), ...); a resumed run's last lines count."""
    training, held_out = {}, {}
    for line in log.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "step":
            training[event["step"] + 1] = event["loss"]
        if event["event"] == "evaluation":
            held_out[event["step"]] = event["validation_loss"]
    steps = sorted(training)
    means = []
    for at in range(0, len(steps), WINDOW):
        window = steps[at : at + WINDOW]
        means.append((window[-1], sum(training[step] for step in window) / len(window)))
    return means, sorted(held_out.items())


def write_csv(path: Path, training, held_out):
    rows = dict(training), dict(held_out)
    lines = ["step,training_loss,validation_loss"]
    for step in sorted({*rows[0], *rows[1]}):
        lines.append(f"{step}," + ",".join(f"{row[step]:.4f}" if step in row else "" for row in rows))
    path.write_text("\n".join(lines) + "\n")


def write_svg(path: Path, training, held_out):
    points = [*training, *held_out]
    steps = max(step for step, _ in points)
    low, high = min(loss for _, loss in points) - 0.1, max(loss for _, loss in points) + 0.1

    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / steps

    def y(loss):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)

    text = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
            'font-size="13" fill="none"><rect width="100%" height="100%" fill="white"/>']
    for i in range(6):
        step, loss = round(steps * i / 5), low + (high - low) * i / 5
        text.append(f'<path d="M{LEFT} {y(loss):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
                    f'<text x="{LEFT - 6}" y="{y(loss) + 4:.1f}" text-anchor="end" fill="black">{loss:.2f}</text>'
                    f'<text x="{x(step):.1f}" y="{HEIGHT - 24}" text-anchor="middle" fill="black">{step}</text>')
    text.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle" fill="black">steps; loss in nats per token'
                '</text>')
    for row, (name, color, curve) in enumerate((("training", "#1f77b4", training), ("validation", "#d62728", held_out))):
        line = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in curve)
        text.append(f'<polyline points="{line}" stroke="{color}" stroke-width="2"/>'
                    f'<text x="{WIDTH - RIGHT - 8}" y="{TOP + 18 + 18 * row}" text-anchor="end" fill="{color}">{name}</text>')
    path.write_text("\n".join([*text, "</svg>"]) + "\n")


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    write_svg(Path(sys.argv[2]), *curves(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
