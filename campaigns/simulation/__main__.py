"""`python -m campaigns.simulation --seeds 1000 --from 0`"""

from __future__ import annotations

import argparse
import sys
import time

from campaigns.simulation import Histories, Violation


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m campaigns.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories to run")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--keep-going", action="store_true", help="continue after a failing seed, without its trace")
    parser.add_argument("--trace", action="store_true", help="print the trace of good histories too")
    args = parser.parse_args()
    histories = Histories()
    failures = 0
    begun = time.monotonic()
    for done, seed in enumerate(range(args.first, args.first + args.seeds), 1):
        try:
            trace = histories.run(seed)
        except Violation as violation:
            failures += 1
            if not args.keep_going:
                print(violation.report())
                return 1
            print(f"seed {seed} breaks {violation}")
        else:
            if args.trace:
                print("\n".join(trace))
        if done % 100 == 0:
            print(f"{done} histories, {failures} failures, {time.monotonic() - begun:.1f} s", file=sys.stderr)
    print(f"{args.seeds} histories from seed {args.first}: {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
