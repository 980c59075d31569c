"""Recordings of `butterfly` (BUTTERFLY_RECORD=FOLDER), read by programs in Python. A module for the others; run, it says what
share of each step its phases have, and what share of each phase its operations.

    BUTTERFLY_RECORD=/tmp/r butterfly train --model tinytransformer-small --data synthetic:markov --steps 20 --seq 128
    python3 tools/recording.py /tmp/r/*.bftrace
"""

import collections
import struct
import sys

PASSES = ("forward", "input_gradient", "weight_gradient", "recompute")
PHASES = ("data", "forward", "backward", "optimizer", "communication")
CONTAINERS = {"train_step", "layer", *PHASES}
MATMULS = {"qkv", "query", "key", "value", "latent", "attention_output", "gate_up", "gate", "up", "down", "router", "experts",
           "cross", "lm_head", "matmul"}
SAMPLE = ("at_ns", "resident_bytes", "cpu_ns", "system_ns", "run_queue_ns", "machine_busy_ns", "machine_stolen_ns", "minor_faults",
          "heap_bytes", "heap_free_bytes", "mapped_bytes", "file_bytes", "loop_ns")

Span = collections.namedtuple("Span", "zone thread begin end number inner outer flops bytes dtype kind")


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, layout):
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values if len(values) > 1 else values[0]

    def text(self):
        size = self.take("I")
        self.at += size
        return self.data[self.at - size:self.at].decode()

    def names(self):
        return [self.text() for _ in range(self.take("I"))]


class Recording:
    """facts, spans in the order of their begin, samples as dictionaries with `held` and `counters`."""

    def __init__(self, path):
        with open(path, "rb") as file:
            reader = Reader(file.read())
        if reader.take("8s") != b"BFTRACE2":
            raise SystemExit(f"{path}: not a recording")
        zones, counters, owners = reader.names(), reader.names(), reader.names()
        self.facts = {reader.text(): reader.text() for _ in range(reader.take("I"))}
        self.begin, self.end, self.offset, self.error, self.lost, self.dropped = reader.take("QQqQQQ")
        self.spans = []
        for _ in range(reader.take("Q")):
            begin, end, flops, packed, number, inner, outer, place = reader.take("QQQQIIII")
            self.spans.append(Span(zones[place & 255], place >> 8, begin, end, number, inner, outer, flops,
                                   packed & 0xffffffffffff, packed >> 48 & 255, PASSES[packed >> 56]))
        self.samples = []
        for _ in range(reader.take("Q")):
            values = reader.take("12Qd")
            sample = dict(zip(SAMPLE, values))
            sample["held"] = {owner: reader.take("Q") for owner in owners}
            sample["counters"] = {counter: reader.take("Q") for counter in counters}
            self.samples.append(sample)

    def steps(self):
        """Of each step of training: its span, and the spans of its thread within it."""
        threads = collections.defaultdict(list)
        for span in self.spans:
            threads[span.thread].append(span)
        for spans in threads.values():
            steps = [span for span in spans if span.zone == "train_step"]
            for step in steps:
                yield step, [span for span in spans if step.begin <= span.begin and span.end <= step.end and span is not step]


def covered(spans):
    """Nanoseconds that some of them has; `spans` by begin."""
    sum_ns, until = 0, 0
    for span in spans:
        sum_ns += max(0, span.end - max(span.begin, until))
        until = max(until, span.end)
    return sum_ns


def summary(recording, skip=2):
    """Shares of steps by phase, of phases by operation; steps before `skip` plan and touch memory."""
    steps = [step for step in recording.steps() if step[0].number >= skip]
    step_ns = sum(step.end - step.begin for step, _ in steps)
    inside = [span for _, spans in steps for span in spans]
    print(f"{len(steps)} steps of {step_ns / max(1, len(steps)) / 1e6:.3f} ms, {len(inside) / max(1, len(steps)):.0f} spans each, "
          f"{recording.lost} lost")
    phases = [span for span in inside if span.zone in PHASES]
    print(f"phases have {100 * covered(phases) / step_ns:.2f} % of the steps")
    for name in PHASES:
        mine = [span for span in phases if span.zone == name]
        phase_ns = covered(mine)
        children = [span for _, spans in steps for phase in spans if phase.zone == name
                    for span in spans if phase.begin <= span.begin and span.end <= phase.end and span.zone not in CONTAINERS]
        share = f", its operations {100 * covered(children) / phase_ns:.2f} % of that" if phase_ns else ""
        print(f"  {name:14} {100 * phase_ns / step_ns:6.2f} %{share}")
    operations = collections.defaultdict(lambda: [0, 0, 0, 0])
    for span in inside:
        if span.zone in CONTAINERS:
            continue
        row = operations[span.zone, span.kind]
        for i, value in enumerate((span.end - span.begin, 1, span.flops, span.bytes)):
            row[i] += value
    for (zone, kind), (ns, count, flops, moved) in sorted(operations.items(), key=lambda item: -item[1][0]):
        print(f"  {zone:16} {kind:15} {100 * ns / step_ns:6.2f} %  {count / len(steps):8.1f} x {ns / count / 1e3:9.2f} us "
              f"{flops / ns:8.1f} GFLOP/s {moved / ns:7.1f} GB/s")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(name)
        summary(Recording(name))
