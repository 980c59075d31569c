#!/usr/bin/env python3
"""Holds grammars made of JSON schemas against the package jsonschema, which has no part in them.

    tools/compare_json_schemas.py VOCABULARY [--schemas 500] [--seed 0] [--program build/release/bin/grammar_check]
    tools/compare_json_schemas.py --golden 40 > tests/golden/json_schemas.json

For each of many random schemas of the subset that is understood:
  written   texts sampled from random logits, with limits from the least possible number of tokens up: each must be
            JSON that jsonschema finds valid, and whole
  accepted  random documents that are valid by construction, in several layouts: the grammar must accept each
  refused   the same documents with a change that jsonschema finds invalid: the grammar must refuse each
Exit status 0: all of it holds; 1: it does not, the first cases are printed.

--golden writes some of the schemas and documents, with what jsonschema says of them, for a test that has no jsonschema.

VOCABULARY is a GGUF file, such as models/demo.gguf, or a directory with a tokenizer. Needs jsonschema[format].
"""

import argparse
import json
import pathlib
import random
import re
import string
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    jsonschema = None

FORMATS = {
    "date": lambda r: f"{r.randint(1900, 2100)}-{r.randint(1, 12):02}-{r.randint(1, 28):02}",
    "time": lambda r: f"{r.randint(0, 23):02}:{r.randint(0, 59):02}:{r.randint(0, 59):02}{r.choice(['Z', '+02:00', '.125Z'])}",
    "date-time": lambda r: FORMATS["date"](r) + "T" + FORMATS["time"](r),
    "duration": lambda r: r.choice(["P3D", "PT1H30M", "P1Y2M3DT4H5M6S", "P2W", "PT5S"]),
    "email": lambda r: r.choice(["a@b.org", "first.last+tag@mail.example.com"]),
    "hostname": lambda r: r.choice(["example.org", "a-b.c1.example.com"]),
    "ipv4": lambda r: ".".join(str(r.randint(0, 255)) for _ in range(4)),
    "ipv6": lambda r: r.choice(["::1", "2001:db8::ff00:42:8329", "1:2:3:4:5:6:7:8", "fe80::"]),
    "uuid": lambda r: "%08x-%04x-%04x-%04x-%012x" % tuple(r.getrandbits(b) for b in (32, 16, 16, 16, 48)),
}
PATTERNS = [
    ("^[a-z]{2,5}$", lambda r: "".join(r.choices(string.ascii_lowercase, k=r.randint(2, 5)))),
    ("^(\\([0-9]{3}\\))?[0-9]{3}-[0-9]{4}$", lambda r: r.choice(["555-1234", "(012)345-6789"])),
    ("ab+c", lambda r: r.choice(["abc", "xx abbbc \"yy\\", "é abc"])),
    ("^\\w+( \\w+)*$|^$", lambda r: r.choice(["", "one", "one two three"])),
    ("[^a-z]$", lambda r: r.choice(["A", "abc1", "x\n\"", "x\u00e9"])),
]
NAMES = ["a", "b", "name", "age", "items", "x y", "caf\u00e9", "q\"uote", "back\\slash", "tag", "kind", "value"]


class Maker:
    """Random schemas, and documents that are valid for them."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.definitions = {}

    def text(self, least=0, most=12):
        letters = "abc XYZ09_-\u00e9\u4e2d\U0001F600\"\\/\n\t"
        return "".join(self.random.choices(letters, k=self.random.randint(least, max(least, most))))

    def schema(self, depth):
        r = self.random
        kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "format", "bounded",
                 "multiple", "any"]
        if depth > 0:
            kinds += ["object", "object", "object", "array", "array", "anyOf", "types", "ref"]
        return getattr(self, "make_" + r.choice(kinds))(depth)

    def make_string(self, _):
        schema = {"type": "string"}
        least, most = sorted((self.random.randint(0, 6), self.random.randint(3, 60)))
        if self.random.random() < 0.4:
            schema["minLength"] = least
        if self.random.random() < 0.4:
            schema["maxLength"] = most
        return schema

    def make_integer(self, _):
        return {"type": "integer", "title": "a number", "description": "that is whole"}

    def make_number(self, _):
        return {"type": "number"}

    def make_boolean(self, _):
        return {"type": "boolean"}

    def make_null(self, _):
        return {"type": "null"}

    def make_any(self, _):
        return self.random.choice([{}, True])

    def make_enum(self, _):
        pool = ["red", "green", "r\"ed", "", 1, -2.5, None, True, {"a": [1, {"b": "c"}]}, [], [1, 2], "caf\u00e9"]
        return {"enum": self.random.sample(pool, self.random.randint(1, 5))}

    def make_const(self, _):
        return {"const": self.random.choice(["x", 7, None, {"k": [True, {}]}])}

    def make_pattern(self, _):
        return {"type": "string", "pattern": self.random.choice(PATTERNS)[0]}

    def make_format(self, _):
        return {"type": "string", "format": self.random.choice(list(FORMATS))}

    def make_bounded(self, _):
        r = self.random
        whole = r.random() < 0.5
        pick = (lambda: r.randint(-1000, 1000)) if whole else (lambda: round(r.uniform(-50, 50), r.randint(0, 4)))
        low, high = sorted((pick(), pick()))
        if high - low < 2:
            high = low + 2
        schema = {"type": "integer" if whole else "number"}
        if r.random() < 0.7:
            schema[r.choice(["minimum", "exclusiveMinimum"])] = low
        if r.random() < 0.7 or len(schema) == 1:
            schema[r.choice(["maximum", "exclusiveMaximum"])] = high
        return schema

    def make_multiple(self, _):
        schema = {"type": "integer", "multipleOf": self.random.randint(2, 40)}
        if self.random.random() < 0.5:
            schema["minimum"] = self.random.randint(-500, 500)
        if self.random.random() < 0.3:
            schema["maximum"] = 700
        return schema

    def make_object(self, depth):
        r = self.random
        names = r.sample(NAMES, r.randint(0, 5))
        schema = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names}}
        schema["required"] = list(names) if r.random() < 0.5 else [n for n in names if r.random() < 0.5]
        kind = r.random()
        if kind < 0.6:
            schema["additionalProperties"] = False
        elif kind < 0.8:
            schema["additionalProperties"] = self.schema(0)
        elif kind < 0.9:
            schema["additionalProperties"] = True
        return schema

    def make_array(self, depth):
        schema = {"type": "array", "items": self.schema(depth - 1)}
        if self.random.random() < 0.5:
            schema["minItems"] = self.random.randint(0, 3)
        if self.random.random() < 0.5:
            schema["maxItems"] = self.random.randint(3, 6)
        return schema

    def make_anyOf(self, depth):
        return {"anyOf": [self.schema(depth - 1) for _ in range(self.random.randint(1, 3))]}

    def make_types(self, _):
        return {"type": self.random.sample(["string", "integer", "boolean", "null", "array", "object"], 2)}

    def make_ref(self, depth):
        name = f"d{len(self.definitions)}"
        self.definitions[name] = True  # taken
        if self.random.random() < 0.5:
            self.definitions[name] = {
                "type": "object", "required": ["value", "next"], "additionalProperties": False,
                "properties": {"value": self.schema(0), "next": {"anyOf": [{"$ref": f"#/$defs/{name}"}, {"type": "null"}]}}}
        else:
            self.definitions[name] = self.schema(depth - 1)
        return {"$ref": f"#/$defs/{name}"}

    def root(self):
        schema = self.schema(3) if self.random.random() < 0.3 else self.make_object(3)
        if isinstance(schema, dict) and self.definitions:
            schema["$defs"] = self.definitions
        return schema

    def number(self, schema):
        r = self.random
        low = schema.get("minimum", schema.get("exclusiveMinimum"))
        high = schema.get("maximum", schema.get("exclusiveMaximum"))
        step = schema.get("multipleOf", 1)
        whole = schema["type"] == "integer" or "multipleOf" in schema
        for _ in range(300):
            a = low if low is not None else (high - 100 if high is not None else -10 ** r.randint(0, 9))
            b = high if high is not None else a + 10 ** r.randint(1, 9)
            value = r.randint(int(a) - 1, int(b) + 1) if whole else round(r.uniform(a, b), r.randint(0, 5))
            if "multipleOf" in schema:
                value -= value % step
            if jsonschema.Draft202012Validator(schema).is_valid(value):
                return value
        return None

    def document(self, schema, root, depth=0):
        """A valid document, or KeyError where none was found."""
        r = self.random
        if schema is True or schema == {}:
            return r.choice([None, 1, -2.5, "x", [1, "y"], {"z": {"w": []}}, True])
        if "$ref" in schema:
            return self.document(root["$defs"][schema["$ref"].split("/")[-1]], root, depth + 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return r.choice(schema["enum"])
        if "anyOf" in schema:
            options = schema["anyOf"]
            return self.document(options[-1] if depth > 8 else r.choice(options), root, depth + 1)
        kind = schema["type"]
        if isinstance(kind, list):
            return self.document({**schema, "type": r.choice(kind)}, root, depth)
        if kind == "object":
            return self.object(schema, root, depth)
        if kind == "array":
            least = schema.get("minItems", 0)
            count = r.randint(least, max(least, min(schema.get("maxItems", 4), 4)))
            return [self.document(schema.get("items", {}), root, depth + 1) for _ in range(count)]
        if kind in ("integer", "number"):
            if len(schema) == 1 or "title" in schema:
                return r.choice([0, -5, 10 ** 12]) if kind == "integer" else r.choice([0, -1.5, 2e10, 3.25e-7, 12])
            value = self.number(schema)
            if value is None:
                raise KeyError("no number")
            return value
        if kind == "string":
            if "format" in schema:
                return FORMATS[schema["format"]](r)
            if "pattern" in schema:
                return dict(PATTERNS)[schema["pattern"]](r)
            return self.text(schema.get("minLength", 0), schema.get("maxLength", 20))
        return None if kind == "null" else r.random() < 0.5

    def object(self, schema, root, depth):
        r = self.random
        result = {}
        properties = schema.get("properties", {})
        for name, member in properties.items():
            if name in schema.get("required", []) or r.random() < 0.5:
                result[name] = self.document(member, root, depth + 1)
        further = schema.get("additionalProperties", not properties)
        if further is not False and r.random() < 0.5:
            for name in ("zz", "nam"):
                result[name] = self.document(further, root, depth + 1)
        return result

    def broken(self, document):
        """Another document, near this one."""
        r = self.random
        if isinstance(document, dict) and document and r.random() < 0.7:
            copy = dict(document)
            name = r.choice(list(copy))
            copy[name] = r.choice([self.broken(copy[name]), None, "no", {"?": 1}, 1234567.5])
            if r.random() < 0.3:
                del copy[name]
            return copy
        if isinstance(document, list) and document and r.random() < 0.7:
            return document[:-1] + [self.broken(document[-1])] if r.random() < 0.6 else document * 4
        if isinstance(document, str):
            return document + r.choice(["x", "\u00e9" * 40, ""]) if r.random() < 0.5 else 5
        if isinstance(document, (int, float)) and not isinstance(document, bool):
            return r.choice([document + 1000, -document - 1, document + 0.5, "1"])
        return r.choice([[], {}, "?", 0, {"unknown": 1}])


def layouts(document):
    return [json.dumps(document, ensure_ascii=False, separators=(",", ":")), json.dumps(document, ensure_ascii=False),
            json.dumps(document, ensure_ascii=False, indent=2)]


def is_valid(validator, text):
    try:
        return validator.is_valid(json.loads(text))
    except ValueError:
        return False


def questions(count, seed):
    for number in range(count):
        maker = Maker(seed * 1_000_003 + number)
        schema = maker.root()
        documents, changed = [], []
        for _ in range(4):
            try:
                document = maker.document(schema, schema)
            except KeyError:
                continue
            documents.append(document)
            changed.append(maker.broken(document))
        yield number, schema, documents, changed


def judged(schema, documents, changed):
    """A validator, texts that it finds valid, and texts that it does not."""
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    bad = [text for document in changed if not validator.is_valid(document) for text in layouts(document)[1:2]]
    good = [text for document in documents if validator.is_valid(document) for text in layouts(document)]
    return validator, good, bad


def write_golden(count):
    cases = []
    for number, schema, documents, changed in questions(count, 77):
        _, good, bad = judged(schema, documents, changed)
        cases.append({"schema": schema, "valid": good[number % 3::3], "invalid": bad})
    json.dump({"made_by": "tools/compare_json_schemas.py --golden", "cases": cases}, sys.stdout, separators=(",", ":"))
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("vocabulary", nargs="?", default="models/demo.gguf")
    parser.add_argument("--golden", type=int, default=0)
    parser.add_argument("--schemas", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--program", default=str(pathlib.Path(__file__).resolve().parent.parent /
                                                 "build/release/bin/grammar_check"))
    options = parser.parse_args()
    if jsonschema is None:
        sys.exit("this needs the Python package jsonschema[format]")
    if options.golden:
        return write_golden(options.golden)
    process = subprocess.Popen([options.program, options.vocabulary, "--time"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True, encoding="utf-8")
    faults, counts, refused = [], {"written": 0, "accepted": 0, "refused": 0}, {}
    for number, schema, documents, changed in questions(options.schemas, options.seed):
        validator, good, bad = judged(schema, documents, changed)
        question = {"kind": "json_schema", "source": json.dumps(schema), "texts": good + bad, "seed": number,
                    "tokens": [0, -1, -5, 40, 200]}
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        if "error" in answer:
            reason = re.sub(r"at #\S*|\d+(\.\d+)?", "_", answer["error"])
            refused[reason] = refused.get(reason, 0) + 1
            if refused[reason] == 1:
                print(f"refused: {answer['error']}\n  {json.dumps(schema)[:300]}", file=sys.stderr)
            continue
        for text, accepted in zip(good + bad, answer.get("accepts", [])):
            wanted = text in good
            counts["accepted" if wanted else "refused"] += 1
            if accepted != wanted:
                faults.append(f"{'not accepted' if wanted else 'accepted'}: {text}\n  {json.dumps(schema)}")
        for text, whole in zip(answer["written"], answer["whole"]):
            counts["written"] += 1
            if not whole or not is_valid(validator, text):
                faults.append(f"written, whole {whole}: {text}\n  {json.dumps(schema)}")
    process.stdin.close()
    process.wait()
    for fault in faults[:10]:
        print(fault)
    print(f"{options.schemas} schemas, {sum(refused.values())} of them refused: {counts['written']} texts written, "
          f"{counts['accepted']} valid and {counts['refused']} invalid documents: {len(faults)} faults")
    sys.exit(1 if faults or process.returncode else 0)


if __name__ == "__main__":
    main()
