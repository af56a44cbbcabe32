"""Feed damaged files to every parser, and count what is not a plain refusal.

Each input is a valid one with a few mutations: bits, bytes, lines and numbers changed, cut, doubled or put elsewhere. A
parser may read it or refuse it with an error of the package. Findings are other exceptions, calls of more
than a second, and calls after which the process has grown by more than a GiB. The table of all parsers is printed.

    python tests/fuzz/fuzz.py [--share 0.1] [--seed 0]

A call with the same seed gives the same inputs. `--share` takes a part of each parser's inputs; the whole takes about
three minutes of one core.
"""

import argparse
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from fuzz_parsers import Parse, Parser, all_parsers
from tabulate import tabulate

from robustbench_kpca._core.errors import BenchmarkError

SLOW, GROWTH, STUCK = 1.0, 2**30, 20
ODD = [b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"-1", b"1e999", b"nan", b"inf", b"9" * 30, b'"', b"'", b"[", b"{", b"]}",
       b",", b"\n", b"\r\n", b"../", b"/dev/zero", b"\xe2\x80\xae", b"[[a]]\n", b"=", b":", b"@", b"?", b"0x", b"1_0",
       b"null", b"true", "٣".encode(), b"[" * 200, b'{"a":' * 100]  # fmt: skip


@dataclass
class Found:
    inputs: int = 0
    read: int = 0
    refused: int = 0
    raised: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    large: list[str] = field(default_factory=list)
    seconds: float = 0.0


def mutate(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """Change a few places of valid bytes."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(made) + 1)
        end = min(len(made), at + rng.choice((1, 2, 4, 16, 64)))
        kind = rng.randrange(9)
        if kind == 0 and at < len(made):
            made[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(made):
            made[at] = rng.randrange(256)
        elif kind == 2:
            del made[at:end]
        elif kind == 3:
            made[at:at] = made[at:end] * rng.choice((1, 2, 50))
        elif kind == 4:
            made[at:at] = rng.choice(ODD)
        elif kind == 5:
            made[at:end] = rng.choice(ODD)
        elif kind == 6:
            del made[at:]
        elif kind == 7:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            made[at:end] = other[start : start + 64]
        else:
            lines = bytes(made).split(b"\n")
            one, two = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[one], lines[two] = lines[two], lines[one]
            made = bytearray(b"\n".join(lines))
    return bytes(made)


def fuzz(parser: Parser, inputs: int, seed: int) -> Found:
    rng, found = random.Random(f"{parser.name} {seed}"), Found()
    peak = _peak()
    begun = time.process_time()
    for _ in range(inputs):
        data = mutate(rng.choice(parser.seeds), rng, parser.seeds)
        started = time.perf_counter()
        wrong = _call(parser.parse, data, found)
        took = time.perf_counter() - started
        grown, peak = _peak() - peak, max(_peak(), peak)
        if took > SLOW:
            found.slow.append(f"{took:.1f} s")
        if grown > GROWTH:
            found.large.append(f"{grown / 2**30:.1f} GiB")
        if wrong:
            found.raised.append(wrong)
    found.inputs, found.seconds = inputs, time.process_time() - begun
    return found


def _call(parse: Parse, data: bytes, found: Found) -> str:
    """Parse once; return the kind and place of an exception that is no plain refusal."""
    signal.alarm(STUCK)
    try:
        with warnings.catch_warnings(action="ignore"):
            parse(data)
        found.read += 1
    except BenchmarkError as error:
        found.refused += 1
        if "\n" in str(error):
            return "a refusal of several lines"
    except Exception as error:  # noqa: BLE001 (that is what is looked for)
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        ours = [
            (f.f_code.co_filename, n)
            for f, n in traceback.walk_tb(error.__traceback__)
            if "robustbench_kpca" in f.f_code.co_filename
        ]
        place = ours[-1] if ours else (frame.f_code.co_filename, line)
        return f"{type(error).__name__} at {Path(place[0]).name}:{place[1]}: {str(error)[:80]!r}"
    finally:
        signal.alarm(0)
    return ""


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Feed the parsers and print the table."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--share", type=float, default=1.0)
    asked.add_argument("--seed", type=int, default=0)
    options = asked.parse_args()
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    rows, wrong = [], 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        for parser in all_parsers(Path(folder)):
            found = fuzz(parser, max(1, round(options.share * parser.inputs)), options.seed)
            for kind in sorted({*found.raised, *found.slow, *found.large}):
                print(f"{parser.name}: {kind} ({(found.raised + found.slow + found.large).count(kind)} times)")
            wrong += len(found.raised) + len(found.slow) + len(found.large)
            rows.append([parser.name, f"{found.inputs:,}", f"{found.read:,}", f"{found.refused:,}", len(found.raised),
                         len(found.slow), len(found.large), f"{found.seconds:.0f}"])  # fmt: skip
            print(f"{parser.name}: {found.inputs:,} inputs, {found.seconds:.0f} s", file=sys.stderr, flush=True)
    heads = ["parser", "inputs", "read", "refused", "tracebacks", "> 1 s", "> 1 GiB", "CPU s"]
    print(tabulate(rows, headers=heads, tablefmt="github"))
    print(f"{sum(int(row[1].replace(',', '')) for row in rows):,} inputs, {wrong} findings")


if __name__ == "__main__":
    main()
