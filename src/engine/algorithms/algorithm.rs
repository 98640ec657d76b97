//! The algorithms, under their names in the rules file.

/// `algorithm:` of a limit. `elevated` is not one of them: it adds numbers to `gcra`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    #[default]
    Gcra,
    FixedWindow(Aligned),
    SlidingLog,
    SlidingWindow {
        count_denied: bool,
    },
    Concurrency,
    Queue,
    Script,
}

/// `aligned:`, the starts of fixed windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Aligned {
    /// The first charge on a full bucket.
    #[default]
    First,
    /// The multiples of the period since the Unix epoch, or the months and years of a calendar.
    Clock,
}

impl Algorithm {
    /// The name in the rules file, which the files in `lua/` have, too.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gcra => "gcra",
            Self::FixedWindow(_) => "fixed_window",
            Self::SlidingLog => "sliding_log",
            Self::SlidingWindow { .. } => "sliding_window",
            Self::Concurrency => "concurrency",
            Self::Queue => "queue",
            Self::Script => "script",
        }
    }

    /// The suffix of its buckets' keys. It keeps them apart from those of the same limit under another algorithm, which could not
    /// read them. GCRA and fixed windows can read each other's.
    pub const fn key_suffix(self) -> &'static str {
        match self {
            Self::Gcra | Self::FixedWindow(_) => "",
            Self::SlidingLog => "#log",
            Self::SlidingWindow { .. } => "#sliding",
            Self::Concurrency => "#slots",
            Self::Queue => "#queue",
            Self::Script => "#script",
        }
    }

    /// Returns true if its state is a [`Level`](super::level::Level).
    #[inline]
    pub const fn keeps_level(self) -> bool {
        matches!(self, Self::Gcra | Self::FixedWindow(_))
    }

    /// Returns true if its buckets have the instants of their tokens, but not the period after which each comes back.
    pub const fn dates_tokens(self) -> bool {
        matches!(self, Self::SlidingLog)
    }

    /// Returns true if only Redis decides it, and nothing takes a charge back: workers may have the entry, and a script has run.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Queue | Self::Script)
    }

    /// Returns true if its buckets hold tokens, rather than slots, entries or the counts of a script.
    pub const fn has_tokens(self) -> bool {
        matches!(self, Self::Gcra | Self::FixedWindow(_) | Self::SlidingLog | Self::SlidingWindow { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rules files have the names, and the keys of all buckets in Redis the suffixes.
    #[test]
    fn names_and_suffixes_never_change() {
        let first = Algorithm::FixedWindow(Aligned::First);
        let sliding = Algorithm::SlidingWindow { count_denied: true };
        for (algorithm, name, suffix, keeps_level, has_tokens) in [
            (Algorithm::Gcra, "gcra", "", true, true),
            (first, "fixed_window", "", true, true),
            (Algorithm::SlidingLog, "sliding_log", "#log", false, true),
            (sliding, "sliding_window", "#sliding", false, true),
            (Algorithm::Concurrency, "concurrency", "#slots", false, false),
            (Algorithm::Queue, "queue", "#queue", false, false),
            (Algorithm::Script, "script", "#script", false, false),
        ] {
            assert_eq!((algorithm.name(), algorithm.key_suffix()), (name, suffix));
            assert_eq!((algorithm.keeps_level(), algorithm.has_tokens()), (keeps_level, has_tokens), "{name}");
        }
    }
}
