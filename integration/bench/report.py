"""Tables of figures, and ratios with the verdict on each target."""

import statistics

COLUMNS = {
    "cpu_us": "CPU us/req",
    "user_us": "user",
    "system_us": "system",
    "rps": "req/s",
    "p50_us": "p50 us",
    "p99_us": "p99 us",
    "pss_mib": "PSS MiB",
}
DIGITS = {"cpu_us": 2, "user_us": 2, "system_us": 2, "pss_mib": 1}
FIGURES = {"cpu_us": "CPU per request", "user_us": "user per request", "p99_us": "p99"}

# Another binary of Weir is compared with its own kind alone.
BASELINES = {"weir": "baseline", "weir+redis": "baseline+redis"}

# What is held against a target: a figure of a contender, in a scenario, divided by a peer's, at most. `None` of the
# scenarios is every one.
TARGETS = [
    ("cpu_us", "weir", None, "nginx", 0.9),
    ("user_us", "weir", "passing", "nginx", 0.75),
    ("cpu_us", "weir", "passing", "envoy", 0.2),
    ("cpu_us", "weir+redis", "passing", "nginx", 2.0),
    ("cpu_us", "weir+redis", "denied", "nginx", 1.6),
]
# With more workers or TLS.
VARIANT_TARGETS = [("cpu_us", "weir", None, "nginx", 0.95)]
BODY_TARGETS = [("cpu_us", "weir", "passing", "nginx", 1.0)]
HTTP2_TARGETS = [("cpu_us", "weir", None, "haproxy", 1.0)]


def summary(turns):
    """The figures of one contender: medians over its turns, and the most memory that it had."""
    figures = {column: statistics.median(turn[column] for turn in turns) for column in COLUMNS}
    return figures | {"pss_mib": max(turn["pss_mib"] for turn in turns), "rounds": turns}


def ratio(turns, others, figure="cpu_us"):
    """The median of the rounds' ratios, so that a slow round counts against both."""
    return statistics.median(turn[figure] / other[figure] for turn, other in zip(turns, others, strict=True))


def ratios(scenario, turns, targets):
    """Rows of Weir against each peer, with the target if there is one."""
    peers = [name for name in turns if not name.startswith(("weir", "baseline"))]
    # The floor's figures are in the table. It decides nothing, so a ratio to it would be no comparison.
    peers = [name for name in peers if name != "relay"]
    rows = []
    for figure in FIGURES:
        for name in turns:
            if not name.startswith("weir"):
                continue
            own = [BASELINES[name]] if BASELINES[name] in turns else []
            for peer in own + peers:
                target = next(
                    (
                        at_most
                        for of, who, where, against, at_most in targets
                        if (of, who, against) == (figure, name, peer) and where in (None, scenario)
                    ),
                    None,
                )
                row = {"scenario": scenario, "figure": figure, "weir": name, "peer": peer}
                value = ratio(turns[name], turns[peer], figure)
                rows.append(
                    row | {"ratio": value, "at_most": target, "hit": None if target is None else value <= target}
                )
    return rows


def print_table(title, results):
    print(f"\n{title:24}" + "".join(f"{column:>12}" for column in COLUMNS.values()))
    for name, figures in results.items():
        cells = (f"{figures[column]:12,.{DIGITS.get(column, 0)}f}" for column in COLUMNS)
        print(f"{name:24}" + "".join(cells))


def print_ratios(title, rows):
    print(f"\n{title}: Weir / peer")
    for row in rows:
        verdict = "" if row["hit"] is None else f"   at most {row['at_most']}: {'HIT' if row['hit'] else 'MISS'}"
        print(
            f"{FIGURES[row['figure']]:16} {row['scenario']:8} {row['weir']:11} / {row['peer']:20} {row['ratio']:7.3f}{verdict}"
        )


def print_misses(rows):
    judged = [row for row in rows if row["hit"] is not None]
    missed = [row for row in judged if not row["hit"]]
    print(f"\n{len(judged) - len(missed)} of {len(judged)} targets hit" + (", MISSED:" if missed else ""))
    for row in missed:
        figures = f"{row['ratio']:.2f}, at most {row['at_most']}"
        print(
            f"  {row['variant']}: {FIGURES[row['figure']]}, {row['scenario']}, {row['weir']} / {row['peer']}: {figures}"
        )
