"""Draws what `trl_grpo_integration.py --counts FILE` wrote: the share of right answers, step by step and in windows of ten.

python examples/rl_training/plot_counts.py counts.json curve.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 300, 60, 30, 20, 50
WINDOW = 10


def main() -> None:
    """Read, print the windows, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("counts", type=Path, help="what --counts wrote")
    parser.add_argument("picture", type=Path, help="an SVG that is written")
    arguments = parser.parse_args()
    calls = json.loads(arguments.counts.read_text(encoding="utf-8"))
    shares = [call["passed"] / (call["ran"] + call["skipped"]) for call in calls]
    for start in range(0, len(calls), WINDOW):
        some = calls[start : start + WINDOW]
        right, asked = sum(call["passed"] for call in some), sum(call["ran"] + call["skipped"] for call in some)
        print(f"steps {start + 1}-{start + len(some)}: {right} of {asked} right")

    def place(step: float, share: float) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * step / len(shares)
        return f"{x:.1f},{TOP + (HEIGHT - TOP - BOTTOM) * (1 - share):.1f}"

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">']
    parts.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
    for percent in range(0, 101, 25):
        begin, end = place(0, percent / 100), place(len(shares), percent / 100)
        parts.append(f'<polyline points="{begin} {end}" stroke="#ddd"/>')
        x, y = begin.split(",")
        parts.append(f'<text x="{float(x) - 8}" y="{float(y) + 4}" text-anchor="end">{percent} %</text>')
    for step in range(0, len(shares) + 1, WINDOW):
        x, y = place(step, 0).split(",")
        parts.append(f'<text x="{x}" y="{float(y) + 18}" text-anchor="middle">{step}</text>')
    points = " ".join(place(step + 0.5, share) for step, share in enumerate(shares))
    parts.append(f'<polyline points="{points}" fill="none" stroke="#9bc" stroke-width="1.5"/>')
    means = []
    for start in range(0, len(shares), WINDOW):
        some = shares[start : start + WINDOW]
        mean = sum(some) / len(some)
        means += [place(start, mean), place(start + len(some), mean)]
    parts.append(f'<polyline points="{" ".join(means)}" fill="none" stroke="#036" stroke-width="2.5"/>')
    parts.append(f'<text x="{LEFT}" y="18">right answers: each step, and the mean of ten</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">training step</text></svg>')
    arguments.picture.write_text("\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
