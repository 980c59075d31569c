#!/usr/bin/env python3
"""JSON that butterfly writes, held against the schemas in docs/formats.

    python3 tools/check_formats.py DIR...                every JSON file of a study's folder
    python3 tools/check_formats.py --bench FILE...       what `butterfly bench all --json` printed; --bench-name kernels: that one alone

Where the package jsonschema is installed (python3 -m venv v; v/bin/pip install jsonschema; v/bin/python tools/...) it judges, too, and
both have to agree; the tests, which import this file, need no package. Exit code 1: something does not follow its schema.
"""

import argparse
import json
import os
import sys

try:
    import jsonschema
except ImportError:
    jsonschema = None

FORMATS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs/formats")
OF_STUDY = {"report.json": "study", "study.json": "study_about", "trace.json": "trace_events",
            "flops_analysis/flops_profile.json": "flops_profile",
            "flops_analysis/computational_intensity.json": "computational_intensity"}
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int, "number": (int, float)}
KNOWN = {"$schema", "$defs", "title", "description", "$ref", "type", "enum", "minimum", "required", "properties",
         "additionalProperties", "items", "anyOf"}


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def schema_of(name):
    """By name; bench/kernels is what `bench kernels --json` prints."""
    name, _, part = name.partition("/")
    schema = load(os.path.join(FORMATS, f"{name}.schema.json"))
    return {"$schema": schema["$schema"], "$ref": f"#/$defs/{part}", "$defs": schema["$defs"]} if part else schema


def has_type(value, name):
    return isinstance(value, TYPES[name]) and (name in ("boolean", "null") or not isinstance(value, bool))


def complaint(schema, value, root=None, where="$"):
    """The first thing that is wrong, as a sentence; None. Knows as much of JSON Schema as docs/formats uses."""
    root = root or schema
    unknown = set(schema) - KNOWN
    if unknown:
        raise ValueError(f"the schema of {where} uses {', '.join(sorted(unknown))}, which is not known here")
    if "$ref" in schema:
        at = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            at = at[step]
        return complaint(at, value, root, where)
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(has_type(value, name) for name in types):
        return f"{where} is {json.dumps(value)[:40]}, not {' or '.join(types)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} is {json.dumps(value)[:40]}, not one of {json.dumps(schema['enum'])}"
    if "minimum" in schema and isinstance(value, (int, float)) and value < schema["minimum"]:
        return f"{where} is {value}, less than {schema['minimum']}"
    if "anyOf" in schema:
        found = [complaint(one, value, root, where) for one in schema["anyOf"]]
        if all(found):
            return f"{where} is nothing that is allowed there: " + "; ".join(found)
    if isinstance(value, dict):
        properties, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name in schema.get("required", []):
            if name not in value:
                return f"{where} has no {name}"
        for name, member in value.items():
            inner = properties.get(name, more)
            if inner is False:
                return f"{where} has {name}, which the schema does not"
            if isinstance(inner, dict) and (found := complaint(inner, member, root, f"{where}.{name}")):
                return found
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            if found := complaint(schema["items"], item, root, f"{where}[{number}]"):
                return found
    return None


def finite_json(path):
    """Python's reader takes NaN and Infinity, which JSON does not have."""
    def refuse(text):
        raise ValueError(f"{text} is no JSON")

    with open(path, encoding="utf-8") as file:
        return json.load(file, parse_constant=refuse)


def judged(path, name):
    """What is wrong with a file; None."""
    schema, value = schema_of(name), finite_json(path)
    ours = complaint(schema, value)
    if jsonschema is None:
        return ours
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    theirs = next((f"{error.json_path}: {error.message[:200]}" for error in validator(schema).iter_errors(value)), None)
    if bool(ours) != bool(theirs):
        raise SystemExit(f"{path}: this program says {ours}, jsonschema says {theirs}")
    return ours


def study_files(folder):
    """Path and schema of each JSON file of a study; those of repeats and recordings are others'."""
    return [(os.path.join(folder, file), name) for file, name in OF_STUDY.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--bench-name")
    parser.add_argument("path", nargs="+")
    arguments = parser.parse_args()
    bench = f"bench/{arguments.bench_name}" if arguments.bench_name else "bench"
    files = [(path, bench) for path in arguments.path] if arguments.bench or arguments.bench_name else [
        file for folder in arguments.path for file in study_files(folder)]
    oracle = f"jsonschema {__import__('importlib.metadata').metadata.version('jsonschema')} agrees" if jsonschema else "jsonschema is not installed"
    wrong = 0
    for path, name in files:
        fault = judged(path, name)
        wrong += fault is not None
        print(f"{path}: {fault or 'follows'} {name}.schema.json ({oracle})")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
