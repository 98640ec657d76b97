//! The algorithms, under their names in the rules file.

use super::concurrency::DEFAULT_LEASE;
use super::numbers::{Numbers, NumbersError};

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

    /// Returns the numbers that a call brings, which are read as GCRA's, as those of this algorithm.
    pub fn numbers(self, given: &Numbers) -> Result<Numbers, NumbersError> {
        let (burst, count, period) = (given.burst(), given.count(), given.period());
        match self {
            Self::Queue | Self::Script => Err(NumbersError::NotPerCall),
            _ if count == 0 => Ok(given.clone()),
            Self::Gcra => Ok(given.clone()),
            Self::FixedWindow(aligned) => Numbers::fixed_window(burst, count, period, aligned),
            Self::SlidingLog => Numbers::sliding_log(count, period),
            Self::SlidingWindow { count_denied } => Numbers::sliding_window(count, period, count_denied),
            Self::Concurrency => Numbers::concurrency(burst, DEFAULT_LEASE),
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

    /// Returns true if it bounds what was taken in any period, wherever the period begins.
    pub const fn is_sliding(self) -> bool {
        self.has_tokens() && !self.keeps_level()
    }

    /// Returns true if it bounds how much comes in a time, rather than how much there is at once.
    pub const fn bounds_rate(self) -> bool {
        !matches!(self, Self::Concurrency | Self::Queue)
    }

    /// Returns true if workers look for its buckets, under their own names.
    pub const fn has_workers(self) -> bool {
        matches!(self, Self::Queue)
    }

    /// Returns why nobody can change what its buckets hold, if so.
    pub const fn immutability(self) -> Option<&'static str> {
        match self {
            Self::Concurrency => {
                Some("counts requests in flight, which end by themselves: it can only be reset, one id at a time")
            }
            Self::Queue => Some("is a queue, whose entries only its workers take"),
            Self::Script => Some("is a script, and only the script knows its buckets"),
            _ => None,
        }
    }
}

impl Numbers {
    /// Returns the numbers of the same kind with another burst and count. Of some kinds, only one of both counts.
    pub fn resized(&self, burst: u64, count: u64) -> Result<Self, NumbersError> {
        match (self.algorithm(), &self.calendar) {
            (Algorithm::Gcra, _) if self.count() == 0 => Self::fixed(burst),
            (Algorithm::Gcra, _) => Self::new(burst, count, self.period()),
            (Algorithm::FixedWindow(_), Some(calendar)) => Self::calendar_window(burst, count, calendar.clone()),
            (Algorithm::FixedWindow(aligned), None) => Self::fixed_window(burst, count, self.period(), aligned),
            (Algorithm::SlidingLog, _) => Self::sliding_log(count, self.period()),
            (Algorithm::SlidingWindow { count_denied }, _) => Self::sliding_window(count, self.period(), count_denied),
            (Algorithm::Concurrency, _) => Self::concurrency(burst, self.span() * 1_000),
            (Algorithm::Queue | Algorithm::Script, _) => Err(NumbersError::NotPerCall),
        }
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
        for (algorithm, name, suffix, [keeps_level, has_tokens, is_sliding, bounds_rate]) in [
            (Algorithm::Gcra, "gcra", "", [true, true, false, true]),
            (first, "fixed_window", "", [true, true, false, true]),
            (Algorithm::SlidingLog, "sliding_log", "#log", [false, true, true, true]),
            (sliding, "sliding_window", "#sliding", [false, true, true, true]),
            (Algorithm::Concurrency, "concurrency", "#slots", [false; 4]),
            (Algorithm::Queue, "queue", "#queue", [false; 4]),
            (Algorithm::Script, "script", "#script", [false, false, false, true]),
        ] {
            assert_eq!((algorithm.name(), algorithm.key_suffix()), (name, suffix));
            assert_eq!((algorithm.keeps_level(), algorithm.has_tokens()), (keeps_level, has_tokens), "{name}");
            assert_eq!((algorithm.is_sliding(), algorithm.bounds_rate()), (is_sliding, bounds_rate), "{name}");
            // Whose buckets hold tokens, operators can give some back.
            assert_eq!(algorithm.immutability().is_none(), has_tokens, "{name}");
        }
    }
}
