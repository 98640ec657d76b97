//! The numbers that a call brings for a limit with `per_call: true`.

use std::borrow::Cow;
use std::sync::Arc;

use crate::engine::algorithms::algorithm::Algorithm;
use crate::engine::algorithms::charge::Elevated;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::limit::Limit;
use crate::engine::limit::allowance::Allowance;

/// Numbers of a call. What is not given is the limit's, or its override's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallNumbers {
    /// One window, read as GCRA's numbers.
    pub window: Option<Numbers>,
    pub elevated: Option<Arc<Elevated>>,
    /// True if tokens come back evenly instead of in fixed windows (`fixed_window: false`). No effect on other limits.
    pub is_window_off: bool,
}

impl CallNumbers {
    /// Returns the windows to charge instead of those of `given`, the allowance of the id.
    pub(crate) fn windows<'a>(&self, limit: &Limit, given: &'a Allowance) -> Result<Cow<'a, [Numbers]>, String> {
        let algorithm = match limit.algorithm {
            Algorithm::FixedWindow(_) if self.is_window_off => Algorithm::Gcra,
            algorithm => algorithm,
        };
        let windows = match (&self.window, given.windows()) {
            (Some(numbers), _) => vec![algorithm.numbers(numbers).map_err(|error| error.to_string())?].into(),
            (None, Some(windows)) if algorithm != limit.algorithm => {
                let evenly = windows.iter().map(Numbers::evenly).collect::<Result<Vec<_>, _>>();
                evenly.map_err(|error| error.to_string())?.into()
            }
            (None, Some(windows)) => Cow::Borrowed(&windows[..]),
            (None, None) => Cow::Borrowed(&[][..]),
        };
        let changes_period = |own: &Numbers| windows.iter().any(|numbers| numbers.span() != own.span());
        if algorithm.dates_tokens() && given.windows().is_some_and(|own| own.iter().all(changes_period)) {
            return Err(format!(
                "{} is a `{}`, so a call can change its count, but not its period",
                limit.name,
                algorithm.name()
            ));
        }
        if self.elevated.is_some() && algorithm != Algorithm::Gcra {
            return Err(format!("{} needs `algorithm: gcra` for `elevated`", limit.name));
        }
        if self.elevated.is_some() && windows.len() > 1 {
            return Err(format!("{} has several `rates`, which `elevated` cannot be combined with", limit.name));
        }
        Ok(windows)
    }

    /// Returns the elevated numbers to charge by.
    pub(crate) fn elevated<'a>(&'a self, given: &'a Allowance) -> Option<&'a Arc<Elevated>> {
        self.elevated.as_ref().or_else(|| given.elevated())
    }
}
