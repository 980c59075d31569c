#!/usr/bin/env python3
"""Writes docs/performance.md from what `butterfly bench all --json` printed. No number on that page is typed.

    tools/make_performance.py --butterfly build/release/bin/butterfly            measures (minutes) and writes both files
    tools/make_performance.py --from bench.json                                  writes them from an earlier output
    tools/make_performance.py --render                                           the page anew from its data
    tools/make_performance.py --check                                            whether the page is what its data make

docs/performance.json keeps the data, rounded, as far as the page shows them; the page is a function of that file. A
benchmark that failed or was left out is a sentence on the page. Leave the machine alone while it measures.
"""

import argparse
import json
import math
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/performance.md"
DATA = ROOT / "docs/performance.json"
DIGITS = 4  # that the data keep
DISTURBED = ("stolen_cpu_share", "other_programs_cpu_share")

# What the page shows of each benchmark: where its rows are, and their keys. This is the schema that is relied upon.
SCHEMA = {
    "kernels": {"peaks": ("isa", "threads", "memory_read_gb_per_s", "fp32_gflops", "int8_gops"),
                "kernels": ("operation", "type", "shape", "isa", "threads", "flops", "bytes", "median_s", "least_s",
                            "most_s", "share_of_roof")},
    "memory": {"allocations": ("bytes", "malloc_ns", "pool_ns", "arena_ns"), "slices": ("bytes", "slice_ns", "copy_ns")},
    "wire": {"exchanges": ("bytes", "results"), "frames": ("bytes", "frame_gb_per_s", "encode_gb_per_s", "decode_gb_per_s"),
             "table": ("serialisation", "codec", "buffer", "log", "bytes", "gb_per_s", "ratio", "nodes")},
    "collectives": {"": ("engine", "members", "algorithm", "bytes", "median_us", "busbw_gb_per_s")},
    "plan": {"plans": ("model", "layers", "nodes", "strategy", "goal", "plan_s", "step_s", "ideal_s", "share_of_ideal",
                       "gap", "token_s", "ideal_token_s", "tokens_per_s")},
    "model": {"results": ("model", "nodes", "threads", "prefill_tokens", "decode_tokens", "prefill_tokens_per_s",
                          "decode_tokens_per_s", "prefill_gflops", "decode_weight_gb_per_s")},
    "train": {"runs": ("model", "precision", "ranks", "threads", "batch", "seq", "step_s", "step_s_least", "step_s_most",
                       "tokens_per_s", "mfu", "peak_gflops", "communication_exposed_s")},
    "serve": {},
    "sgd": {"": ("engine", "ranks", "median_batches_per_s", "median_pss_megabytes", "bytes_sent_per_step_and_rank")},
}
NESTED = {"results": ("engine", "waiting", "one_way_us"), "nodes": ("name", "serialise_ms", "cpu_s_per_gb")}
MAY_LACK = {"plan": {"step_s", "ideal_s", "share_of_ideal", "gap", "token_s", "ideal_token_s", "tokens_per_s"}}
STUDIES = (["generate", "-m", str(ROOT / "models/demo.gguf"), "-p", "ROMEO:", "-n", "200", "-q"],
           ["train", "--model", "tinytransformer-tiny", "--data", "synthetic:random", "--steps", "30", "--log", "silent"])


class Unreadable(Exception):
    pass


def rounded(value):
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [rounded(one) for one in value]
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return value


def picked(name, rows, keys):
    """The rows with what the page shows of them. Raises Unreadable for a key that is missing."""
    if not isinstance(rows, list) or not rows:
        raise Unreadable(f"{name}: no rows, but {type(rows).__name__}")
    optional = MAY_LACK.get(name, set())
    for row in rows:
        for key in keys:
            if key not in row and not (key in optional and "error" in row):
                raise Unreadable(f"{name}: a row lacks {key}: {json.dumps(row)[:200]}")
    def value(row, key):
        return picked(name, row[key], NESTED[key]) if isinstance(row[key], list) and key in NESTED else row[key]

    return [{key: value(row, key) for key in keys if key in row} for row in rows]


def data_of(output, commit, studies):
    """What the page needs of the output of `bench all --json`."""
    for key in ("version", "begun", "quick", "machine", "benchmarks", "seconds", *DISTURBED):
        if key not in output:
            raise Unreadable(f"the output of bench all lacks {key}")
    data = {key: output[key] for key in ("version", "begun", "quick", "machine", "seconds", *DISTURBED)}
    data["commit"] = commit
    data["benchmarks"] = {}
    for name, one in output["benchmarks"].items():
        kept = {key: one[key] for key in ("command", "seconds", *DISTURBED, "error") if key in one}
        if one["exit_code"] == 0 and name in SCHEMA:
            result = one["result"]
            kept["result"] = {part or "rows": picked(name, result if part == "" else result.get(part), keys)
                              for part, keys in SCHEMA[name].items()} or result
        data["benchmarks"][name] = kept
    data["studies"] = studies
    return rounded(data)


# Cells and tables.


def number(value):
    """Three digits, without an exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 6)}f}"


def percent(value):
    return f"{100 * value:.0f} %"


def spread(values, factor=1.0):
    """Median (smallest-largest)."""
    low, middle, high = (factor * one for one in (min(values), statistics.median(values), max(values)))
    return number(middle) if len(values) == 1 else f"{number(middle)} ({number(low)}-{number(high)})"


def table(heads, rows):
    """`heads`: titles; those that begin with | are aligned to the left."""
    lines = ["| " + " | ".join(head.lstrip("|") for head in heads) + " |",
             "|" + "|".join("---" if head.startswith("|") else "--:" for head in heads) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def grouped(rows, *keys):
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


# Sections, each from its benchmark's data.


def matmul_table(rows):
    """All shapes of a type together, as a layer has them."""
    found = {}
    for (kind, batch, threads), group in grouped([{**row, "batch": int(row["shape"].split(" ")[0])} for row in rows],
                                                 "type", "batch", "threads").items():
        seconds = sum(row["median_s"] for row in group)
        roof = sum(row["median_s"] * row["share_of_roof"] for row in group) / seconds
        found[kind, batch, threads] = (sum(row["bytes"] for row in group) / seconds * 1e-9,
                                       sum(row["flops"] for row in group) / seconds * 1e-9, roof)
    columns = sorted({(batch, threads) for _, batch, threads in found})
    heads = ["|type"]
    for batch, threads in columns:
        unit = "GB/s" if batch == 1 else "GFLOP/s"
        heads += [f"{batch} row{'s' if batch > 1 else ''}, {threads} thread{'s' if threads > 1 else ''}: {unit}", "of roof"]
    lines = []
    for kind in dict.fromkeys(row["type"] for row in rows):
        cells = [kind]
        for column in columns:
            gb, gflops, roof = found[(kind, *column)]
            cells += [number(gb if column[0] == 1 else gflops), percent(roof)]
        lines.append(cells)
    return table(heads, lines)


def operation_table(rows):
    lines = []
    for row in rows:
        seconds = row["median_s"]
        gflops = number(row["flops"] / seconds * 1e-9) if row["flops"] else ""
        micro = [row["least_s"], seconds, row["most_s"]]
        lines.append([row["operation"], row["type"], row["shape"], row["threads"], spread(micro, 1e6), gflops,
                      number(row["bytes"] / seconds * 1e-9), percent(row["share_of_roof"])])
    return table(["|operation", "|type", "|shape", "threads", "us, median (spread)", "GFLOP/s", "GB/s", "of roof"], lines)


def kernels(result):
    rows = result["kernels"]
    text = table(["|instruction set", "threads", "memory GB/s", "fp32 GFLOP/s", "int8 GOP/s"],
                 [[peak["isa"], peak["threads"], number(peak["memory_read_gb_per_s"]), number(peak["fp32_gflops"]),
                   number(peak["int8_gops"])] for peak in result["peaks"]])
    text += ("\nThe roof of an operation is what its FLOPs take at the peak for its type or its bytes at the bandwidth, "
             "whichever is\nlonger, as in reports of `study`. What caches serve can exceed it.\n")
    for isa in dict.fromkeys(row["isa"] for row in rows):
        here = [row for row in rows if row["isa"] == isa]
        matmuls = [row for row in here if row["operation"] == "matmul"]
        if matmuls:
            text += f"\nMatmuls with {isa}, the matrices of a layer of llama-1.1b together:\n\n" + matmul_table(matmuls)
        for title, wanted in (("Attention over one key-value head", {"attention"}),
                              ("Rows", {row["operation"] for row in here} - {"matmul", "attention", "conversion"}),
                              ("Conversions", {"conversion"})):
            chosen = [row for row in here if row["operation"] in wanted]
            if chosen:
                text += f"\n{title}, {isa}:\n\n" + operation_table(chosen)
    return text


def memory(result):
    return ("ns to allocate, touch and free:\n\n"
            + table(["bytes", "malloc", "pool", "arena"],
                    [[f"{row['bytes']:,}", *(spread(row[way]) for way in ("malloc_ns", "pool_ns", "arena_ns"))]
                     for row in result["allocations"]])
            + "\nns for half of a tensor's rows:\n\n"
            + table(["bytes", "slice, shared", "copy"],
                    [[f"{row['bytes']:,}", spread(row["slice_ns"]), spread(row["copy_ns"])] for row in result["slices"]]))


def wire(result):
    settings = [(one["engine"], one["waiting"]) for one in result["exchanges"][0]["results"]]
    text = "Microseconds one way between two threads over loopback, medians, by how a receiver waits:\n\n"
    text += table(["bytes", *(f"{engine}, {waiting}" for engine, waiting in settings)],
                  [[f"{row['bytes']:,}", *(number(one["one_way_us"]) for one in row["results"])] for row in result["exchanges"]])
    text += "\nFrames in memory, GB/s:\n\n"
    text += table(["bytes", "header and checksum", "encode, one copy", "decode, one copy"],
                  [[f"{row['bytes']:,}", *(spread(row[f"{way}_gb_per_s"]) for way in ("frame", "encode", "decode"))]
                   for row in result["frames"]])
    size = result["table"][0]["bytes"]
    text += (f"\nGradients of {size:,} bytes from one process to another, GB/s of them; of each node the ms in which it "
             "makes or reads\na message, and the CPU seconds for a GB:\n\n")
    lines = []
    for row in result["table"]:
        cells = [row["serialisation"], row["codec"], f"{row['buffer']:,}", row["log"], spread(row["gb_per_s"]), f"{row['ratio']:.3f}"]
        for node in row["nodes"]:
            cells += [number(node["serialise_ms"]), number(node["cpu_s_per_gb"])]
        lines.append(cells)
    return text + table(["|serialisation", "|codec", "buffer", "|log", "GB/s", "ratio", "sender ms", "CPU s/GB", "receiver ms",
                         "CPU s/GB"], lines)


def collectives(result):
    groups = grouped(result["rows"], "engine", "members", "algorithm")
    text = ""
    for engine in dict.fromkeys(row["engine"] for row in result["rows"]):
        columns = [key for key in groups if key[0] == engine]
        sizes = sorted({row["bytes"] for key in columns for row in groups[key]})
        cell = {(key, row["bytes"]): number(row["median_us"]) for key in columns for row in groups[key]}
        text += f"\n{engine}, us of one all-reduce, medians:\n\n"
        text += table(["bytes", *(f"{members} members, {algorithm}" for _, members, algorithm in columns)],
                      [[f"{size:,}", *(cell.get((key, size), "") for key in columns)] for size in sizes])
    return text.lstrip("\n")


def plan(result):
    lines = []
    for row in result["plans"]:
        cells = [row["model"], row["nodes"], row["strategy"], row["goal"], number(1e3 * row["plan_s"])]
        if "step_s" in row:
            cells += [number(1e3 * row["step_s"]), percent(row["share_of_ideal"]), f"{100 * row['gap']:+.1f} %",
                      number(1e3 * row["token_s"]), percent(row["ideal_token_s"] / row["token_s"]), number(row["tokens_per_s"])]
        else:
            cells += ["does not fit", *[""] * 5]
        lines.append(cells)
    return table(["|model", "nodes", "|strategy", "|goal", "planning ms", "step ms", "of ideal", "gap", "token ms", "of ideal",
                  "tokens/s"], lines)


def model(result):
    lines = []
    for row in result["results"]:
        decode = row["decode_tokens_per_s"]
        lines.append([row["model"], row["nodes"], row["threads"], row["prefill_tokens"], spread(row["prefill_tokens_per_s"]),
                      number(row["prefill_gflops"]), row["decode_tokens"] if decode else "", spread(decode) if decode else "",
                      number(row["decode_weight_gb_per_s"]) if decode else ""])
    return table(["|model", "nodes", "threads of each", "prompt", "prefill tokens/s", "GFLOP/s", "answer", "decode tokens/s",
                  "GB/s of weights"], lines)


def train(result):
    return table(["|model", "|precision", "ranks x threads", "batch x tokens", "step ms", "tokens/s", "MFU", "of GFLOP/s",
                  "exposed communication"],
                 [[row["model"], row["precision"], f"{row['ranks']} x {row['threads']}", f"{row['batch']} x {row['seq']}",
                   spread([row["step_s_least"], row["step_s"], row["step_s_most"]], 1e3), number(row["tokens_per_s"]),
                   percent(row["mfu"]), number(row["peak_gflops"]), percent(row["communication_exposed_s"] / row["step_s"])]
                  for row in result["runs"]])


def serve(result):
    rows = [[name, *(f"{number(1e3 * one['value'])} ({number(1e3 * one['low'])}-{number(1e3 * one['high'])})"
                     for one in (result[key][share] for share in ("p50", "p95", "p99")))]
            for name, key in (("first token", "time_to_first_token_s"), ("each token after it", "time_per_token_s"),
                              ("whole request", "request_s"))]
    return (f"{result['completed']} of {result['requests']} requests: {number(result['requests_per_s'])} requests/s, "
            f"{number(result['answer_tokens_per_s'])} answer tokens/s.\n\n"
            + table(["|ms, with 95 % interval", "p50", "p95", "p99"], rows))


def sgd(result):
    return table(["|engine", "ranks", "batches/s", "memory of all ranks, MB", "bytes sent per step and rank"],
                 [[row["engine"], row["ranks"], number(row["median_batches_per_s"]), number(row["median_pss_megabytes"]),
                   number(row["bytes_sent_per_step_and_rank"])] for row in result["rows"]])


SECTIONS = (
    ("kernels", "Kernels", kernels, ""),
    ("memory", "Memory", memory, ""),
    ("wire", "The wire", wire, ""),
    ("collectives", "All-reduce", collectives, "Members are threads of one process that read each other's memory (inproc) "
     "or talk over loopback (tcp)."),
    ("plan", "Plans", plan, "Nodes are made up; steps are predicted, and only planning is timed. Ideal: all nodes at work all "
     "the time, and nothing\ntravels. Gap: over the bound for contiguous plans of whole layers."),
    ("model", "Models on nodes", model, "Random weights; the nodes are threads of one process that share its cores and its "
     "memory, so that more of them show what\nsplitting costs, not what more machines gain."),
    ("train", "Training", train, "Random tokens, AdamW, ranks as threads of one process; the cores are divided among them."),
    ("serve", "Serving", serve, "All requests come at once to a server of the shape butterfly-demo with random weights."),
    ("sgd", "A tiny network on many ranks", sgd, ""),
)


def study_section(studies):
    rows = []
    for study in studies:
        for work in study["workloads"]:
            rows.append([f"`{study['command']}`", work["kind"], number(1e3 * work["step_s"]),
                         percent(work["mfu"]) if work["mfu"] is not None else "",
                         percent(work["bandwidth_share"]) if work["bandwidth_share"] is not None else "",
                         percent(work["matmul_share"]) if work["matmul_share"] is not None else ""])
    return table(["|command", "|steps", "step ms", "MFU", "of bandwidth", "of it in matmuls"], rows)


def disturbed(one):
    """What `study` calls disturbed (docs/study.md)."""
    said = []
    if one["stolen_cpu_share"] >= 0.02:
        said.append(f"the host took {100 * one['stolen_cpu_share']:.0f} % of the CPU time wanted")
    if one["other_programs_cpu_share"] >= 0.1:
        said.append(f"other programs used {100 * one['other_programs_cpu_share']:.0f} % of all CPUs")
    return ", **disturbed**: " + " and ".join(said) if said else ""


def page_of(data):
    machine = data["machine"]
    text = f"""# Performance

Generated by `tools/make_performance.py` from the output of `butterfly bench all --json{' --quick' if data['quick'] else ''}`,
kept in [performance.json](performance.json): every number here is from there. To measure your machine:

```sh
tools/make_performance.py --butterfly build/release/bin/butterfly
```

"""
    text += table(["|", "|"], [
        ["machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['usable_threads']} threads usable, "
                    f"{machine['memory_bytes'] / 2**30:.0f} GiB, {machine['system']}"],
        ["instruction set in use", machine["isa"]],
        ["version", f"{data['version']}, commit {data['commit']}"],
        ["begun", f"{data['begun']}, {data['seconds']:.0f} s"],
        ["taken by the host, of the CPU time wanted", f"{100 * data['stolen_cpu_share']:.1f} %"],
        ["used by other programs, of all CPUs", f"{100 * data['other_programs_cpu_share']:.1f} %"],
    ])
    text += ("\nNumbers of several rounds are medians, with the smallest and the largest in parentheses. Comparisons with other "
             "programs,\nwhich take turns with this one, are in [benchmarks](benchmarks.md).\n")
    for name, title, section, note in SECTIONS:
        text += f"\n## {title}\n\n"
        one = data["benchmarks"].get(name)
        if one is None:
            text += f"`butterfly bench {name}` was left out.\n"
            continue
        text += f"`{one['command'].removesuffix(' --json')}`: {one['seconds']:.0f} s" + disturbed(one) + ".\n"
        text += f"{note}\n\n" if note else "\n"
        text += section(one["result"]) if "result" in one else f"It failed: {one['error']}\n"
    if data["studies"]:
        text += "\n## Where the time goes\n\nMedian steps as `butterfly study` sees them ([what the words mean](study.md)):\n\n"
        text += study_section(data["studies"])
    return text


# Measuring and writing.


def commit_here():
    """The commit measured; "unknown" where the sources were unpacked without git."""
    if not shutil.which("git"):
        return "unknown"
    done = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=9"], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    return done.stdout.strip() or "unknown"


def measured(butterfly, quick):
    command = [butterfly, "bench", "all", "--json", *(["--quick"] if quick else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        sys.exit(f"make_performance: {' '.join(command)} ended with {done.returncode}")
    return json.loads(done.stdout)


def studied(butterfly):
    found = []
    for words in STUDIES:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([butterfly, "study", "run", "-o", folder, "--json", "--", *words], stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True, check=False)
        if done.returncode not in (0, 3):  # 3: a run of training too short for its audit
            sys.exit(f"make_performance: study run -- {' '.join(words)} ended with {done.returncode}")
        works = [{"kind": work["kind"], "step_s": work["step_s"]["median"], "matmul_share": work["matmul_share"],
                  **{key: work["efficiency"][key] for key in ("mfu", "bandwidth_share")}}
                 for work in json.loads(done.stdout)["workloads"]]
        found.append({"command": " ".join(["butterfly", *words]).replace(str(ROOT) + "/", ""), "workloads": works})
    return found


def dumped(data):
    """A row a line, so that changes can be read."""
    def lines(value, indent):
        pad = "\n" + " " * (indent + 1)
        nested = isinstance(value, (dict, list)) and value and any(
            isinstance(one, (dict, list)) for one in (value.values() if isinstance(value, dict) else value))
        if not nested or indent > 4:
            return json.dumps(value, separators=(",", ":"))
        if isinstance(value, dict):
            return "{" + ",".join(f"{pad}{json.dumps(key)}: {lines(one, indent + 1)}" for key, one in value.items()) + "}"
        return "[" + ",".join(pad + json.dumps(one, separators=(",", ":")) for one in value) + "]"
    return lines(data, 0) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--butterfly", help="program that measures")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that all works")
    parser.add_argument("--from", dest="source", type=pathlib.Path, help="output of bench all --json instead")
    parser.add_argument("--commit", help="of that output's program [this tree's]")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where the page is not what its data make")
    parser.add_argument("--render", action="store_true", help="the page alone, from its data: after a change of its text")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE)
    parser.add_argument("--data", type=pathlib.Path, default=DATA)
    arguments = parser.parse_args()
    if arguments.check:
        same = page_of(json.loads(arguments.data.read_text(encoding="utf-8"))) == arguments.page.read_text(encoding="utf-8")
        print("the page is what its data make" if same else f"{arguments.page} is not what {arguments.data} makes: was it edited?")
        return 0 if same else 1
    if arguments.render:
        arguments.page.write_text(page_of(json.loads(arguments.data.read_text(encoding="utf-8"))), encoding="utf-8")
        return 0
    if (arguments.butterfly is None) == (arguments.source is None):
        parser.error("one of --butterfly, --from, --render and --check is needed")
    if arguments.source:
        output, studies = json.loads(arguments.source.read_text(encoding="utf-8")), []
    else:
        output, studies = measured(arguments.butterfly, arguments.quick), studied(arguments.butterfly)
    try:
        data = data_of(output, arguments.commit or commit_here(), studies)
    except Unreadable as problem:
        sys.exit(f"make_performance: {problem}")
    arguments.data.write_text(dumped(data), encoding="utf-8")
    arguments.page.write_text(page_of(data), encoding="utf-8")
    failed = [name for name, one in data["benchmarks"].items() if "result" not in one]
    print(f"{arguments.page}: {len(data['benchmarks'])} benchmarks" + (f", failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
