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

# Whichever of them costs less CPU.
CHEAPER = ("nginx", "haproxy")

# Another binary of Weir is compared with its own kind alone.
BASELINES = {"weir": "baseline", "weir+redis": "baseline+redis"}

# What is held against a target: a figure of a contender, in a scenario, divided by a peer's, at most. `None` of the
# scenarios is every one.
TARGETS = [
    ("cpu_us", "weir", None, "nginx", 0.9),
    ("user_us", "weir", "passing", "nginx", 0.75),
    ("cpu_us", "weir", "passing", "envoy", 0.2),
    ("p99_us", "weir", None, "nginx", 1.0),
    ("cpu_us", "weir+redis", None, "nginx", 2.0),
]
# With more workers, TLS or large bodies.
VARIANT_TARGETS = [("cpu_us", "weir", None, "nginx", 0.95)]
HTTP2_TARGETS = [("cpu_us", "weir", None, "cheaper", 1.0)]


def summary(turns):
    """The figures of one contender: medians over its turns, and the most memory that it had."""
    figures = {column: statistics.median(turn[column] for turn in turns) for column in COLUMNS}
    return figures | {"pss_mib": max(turn["pss_mib"] for turn in turns), "rounds": turns}


def ratio(turns, others, figure="cpu_us"):
    """The median of the rounds' ratios, so that a slow round counts against both."""
    return statistics.median(turn[figure] / other[figure] for turn, other in zip(turns, others, strict=True))


def ratios(scenario, turns, targets):
    """Rows of Weir against each peer and the cheaper one, each with its target if it has one."""
    peers = [name for name in turns if not name.startswith(("weir", "baseline"))]
    # The floor's figures are in the table. It decides nothing, so a ratio to it would be no comparison.
    peers = [name for name in peers if name != "relay"]
    candidates = [name for name in CHEAPER if name in turns]
    cheaper = min(candidates, key=lambda name: summary(turns[name])["cpu_us"], default=None)
    rows = []
    for figure in FIGURES:
        for name in turns:
            if not name.startswith("weir"):
                continue
            own = [(BASELINES[name], BASELINES[name])] if BASELINES[name] in turns else []
            for role, peer in own + [(peer, peer) for peer in peers] + ([("cheaper", cheaper)] if cheaper else []):
                target = next(
                    (
                        at_most
                        for of, who, where, against, at_most in targets
                        if (of, who, against) == (figure, name, role) and where in (None, scenario)
                    ),
                    None,
                )
                if role == "cheaper" and target is None:
                    continue
                row = {"scenario": scenario, "figure": figure, "weir": name, "peer": peer, "role": role}
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
        peer = row["peer"] if row["role"] == row["peer"] else f"{row['peer']}, the cheaper"
        verdict = "" if row["hit"] is None else f"   at most {row['at_most']}: {'HIT' if row['hit'] else 'MISS'}"
        print(
            f"{FIGURES[row['figure']]:16} {row['scenario']:8} {row['weir']:11} / {peer:20} {row['ratio']:7.3f}{verdict}"
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
