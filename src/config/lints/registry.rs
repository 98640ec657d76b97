//! The names of all lints, each with its reason and its advice. The page on linting and the SARIF output take them from here.

macro_rules! registry {
    ($($variant:ident, $name:literal, $reason:literal, $advice:literal;)*) => {
        /// A finding of the linter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Lint {
            $(#[doc = $reason] $variant,)*
        }

        impl Lint {
            /// All lints, sorted by name.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name, in kebab case.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The reason why it is worth a warning: one sentence.
            pub const fn reason(self) -> &'static str {
                match self { $(Self::$variant => $reason,)* }
            }

            /// The change that the finding asks for: one sentence.
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$variant => $advice,)* }
            }
        }
    };
}

registry! {
    BanOfOthers, "ban-of-others",
        "Who can send the id of somebody else can have it banned.",
        "Ban by `ip`, by a claim, or by `credentials`.";
    ChosenCost, "chosen-cost",
        "A client that chooses the cost of its requests pays as little as it likes.",
        "Take the cost from the response, or have the gateway set it on every request and write `missing: deny`.";
    ChosenNumber, "chosen-number",
        "A client that can send the header with the numbers of its limit chooses its own limit.",
        "Write a `claim`, or have only trusted proxies send the header.";
    ClaimableExemption, "claimable-exemption",
        "An exemption by nothing but what clients send exempts anybody who sends it.",
        "Add `cidr` or `claims`, or silence this if your gateway sets what it tests.";
    CostAboveBurst, "cost-above-burst",
        "A request that costs more than the burst can never pass.",
        "Raise `burst`, or write `deny: true`.";
    CountsNothing, "counts-nothing",
        "A limit with a cost of 0 never counts a request.",
        "Remove `cost` to count each request as 1.";
    CredentialsHeader, "credentials-header",
        "A client can spell its `Authorization` in many ways that servers accept, and gets a full bucket with each.",
        "Write `by: credentials`.";
    DeniesEverything, "denies-everything",
        "A limit with `deny: true` and neither `match` nor overrides denies every request.",
        "Add `match`, or overrides for the ids to let pass.";
    EnforcesNothing, "enforces-nothing",
        "A limit that is enforced for 0% of its ids denies nobody.",
        "Write `mode: shadow`, or a larger share.";
    ExemptsNothing, "exempts-nothing",
        "A limit with `unlimited: true` and no overrides does nothing, as other limits still count its requests.",
        "Write `exempt` at the top of the file, or give those limits overrides.";
    FailsOpen, "fails-open",
        "A limit on authentication that fails open lets attackers guess passwords and codes while Redis is down.",
        "Write `on_store_error: local` or `on_store_error: deny`.";
    FinerThanClock, "finer-than-clock",
        "Tokens that refill faster than one per microsecond are finer than the clock.",
        "Use a smaller `count`, or accept waits that are rounded up.";
    FreeId, "free-id",
        "A client that can choose its id gets a full bucket with each new one.",
        "Add a limit with `by: ip` for the same requests, or bound the ids with `max_keys` and `max_new_keys`.";
    HiddenLimit, "hidden-limit",
        "A limit or a window that is looser than another one for the same requests can never be the one that denies.",
        "Remove it, or make it stricter than the other.";
    IdleLease, "idle-lease",
        "A lease that is too small or too short for several requests saves no call.",
        "Lengthen `for`, raise `tokens` or `burst`, or remove `lease`.";
    LiteralPath, "literal-path",
        "A path with the placeholders of other systems matches only those characters.",
        "Write `{name}` for any one segment.";
    NeverMatches, "never-matches",
        "A limit whose conditions contradict each other or its `by` never charges a request.",
        "Correct `match` or `by`, or remove the limit.";
    NeverRefills, "never-refills",
        "A client whose bucket never refills stays denied once it has used up the burst.",
        "Add `count` and `period`.";
    NoEffect, "no-effect",
        "A key that another one overrules, other numbers that are those of the limit, or a `not` of what is not covered, change nothing.",
        "Remove it, or change the numbers.";
    NoLimits, "no-limits",
        "Without limits, every request passes.",
        "Add a limit.";
    NoNumbers, "no-numbers",
        "A limit with neither numbers nor overrides never applies.",
        "Add `count` and `period`, or overrides.";
    OtherLimitDenies, "other-limit-denies",
        "An id that is unlimited in one limit is still denied by another one with the same `by`.",
        "Add the override to the other limit, too.";
    OverrideForNetwork, "override-for-network",
        "An override for an IPv6 address applies to its whole /64 if that is what the limit counts.",
        "Write the network, or `by: ip/128` on the limit.";
    OverrideNeverApplies, "override-never-applies",
        "An override that has expired, or that no id of its limit matches, has no effect.",
        "Correct or remove the override.";
    ReviewDue, "review-due",
        "A limit whose review date has passed may have numbers that nobody needs any more.",
        "Review the limit, then move `review_by` or remove it.";
    ShadowCandidate, "shadow-candidate",
        "A candidate beside numbers that deny nobody says little about a change.",
        "Write its numbers as the limit's, or enforce the limit.";
    UnanchoredRegex, "unanchored-regex",
        "A regular expression without `^` and `$` matches anywhere in an id, so other ids may get the override.",
        "Write `^` before it and `$` after it.";
    UnderscoreHeader, "underscore-header",
        "Headers with underscores in their names are dropped before the rules see them.",
        "Use the name with hyphens, or start with `--underscores keep`.";
    UnknownMethod, "unknown-method",
        "A method that is nearly spelled like a registered one is probably a typing mistake.",
        "Write the registered method.";
    UntestedLimit, "untested-limit",
        "A limit that no test in its file sees deny may deny other requests than it was written for.",
        "Add a test that sees the limit deny.";
    UnusableKey, "unusable-key",
        "A key that cannot verify signatures leaves the tokens that it signs unverified.",
        "Publish a key of a supported type, or remove it from the set.";
    UnusedIgnore, "unused-ignore",
        "An `ignore_lints` entry without a finding hides the next one.",
        "Remove the entry.";
    WholeIpv6Address, "whole-ipv6-address",
        "A client with an IPv6 /64 has 2^64 addresses, and gets a full bucket with each.",
        "Write `by: ip`, which counts a /64 as one client.";
    WindowEdge, "window-edge",
        "A fixed window admits up to twice its count within a short time around its end.",
        "Use `algorithm: sliding_window`, or `gcra`.";
}

impl Lint {
    /// Returns the lint with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|lint| lint.name() == name)
    }
}
