//! The numbers that limits should have.

use crate::engine::algorithms::numbers::Numbers;
use crate::engine::limit::LimitMode;
use crate::engine::limit::rules::Rules;
use crate::simulation::curve::Peaks;
use crate::simulation::record::{Axis, with_number};
use crate::simulation::report::{LimitReport, Report, Status};
use crate::simulation::suggestion::Goal;

/// Numbers for a limit: a count that equals the burst, and the limit's own period.
pub(super) struct Proposal {
    /// The index of the limit.
    pub(super) limit: u32,
    pub(super) number: u64,
    pub(super) numbers: Numbers,
    pub(super) peaks: Peaks,
}

/// A limit without a proposal.
pub(super) struct Refused {
    pub(super) limit: u32,
    pub(super) name: String,
    pub(super) why: String,
}

/// Proposes numbers for the limits of these names, or for all if there are none.
pub(super) fn propose(rules: &Rules, report: &Report, names: &[String]) -> (Vec<Proposal>, Vec<Refused>) {
    let (mut proposals, mut refused) = (Vec::new(), Vec::new());
    for (limit, found) in (0..).zip(&report.side.limits) {
        if !names.is_empty() && !names.contains(&found.name) {
            continue;
        }
        match proposal(rules, limit, found) {
            Ok(proposal) => proposals.push(proposal),
            Err(why) => refused.push(Refused { limit, name: found.name.clone(), why }),
        }
    }
    (proposals, refused)
}

fn proposal(rules: &Rules, index: u32, found: &LimitReport) -> Result<Proposal, String> {
    let limit = rules.limit(index).ok_or("it is not in the rules")?;
    match &found.status {
        Status::Off => return Err("it is off".to_owned()),
        Status::NotCovered(missing) => {
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            return Err(format!("the log lacks {}", missing.join(", ")));
        }
        Status::Covered => {}
    }
    if limit.mode == LimitMode::Off || found.requests == 0 {
        return Err("it decided no request".to_owned());
    }
    if !limit.candidates.is_empty() {
        return Err("it has a candidate already".to_owned());
    }
    let suggestion =
        found.suggestion.as_ref().ok_or("no share was given")?.as_ref().map_err(|why| (*why).to_owned())?;
    let windows = limit.allowance.windows().and_then(|windows| windows.first());
    let present = windows.filter(|numbers| numbers.count() > 0).ok_or("its tokens never come back")?;
    let number =
        rounded_up(suggestion.both.ok_or("no numbers keep the share, such as because of its overrides")?.number);
    let numbers = with_number(present, Axis::Both, number).ok_or("the numbers are too large for its period")?;
    if numbers == *present {
        return Err(format!("{numbers} is what the log suggests"));
    }
    Ok(Proposal { limit: index, number, numbers, peaks: suggestion.peaks })
}

/// Raises the proposals with which a limit denies too much, now that the numbers of others have changed, and refuses those that cannot be
/// raised. Returns true if there were none.
pub(super) fn raise(proposals: &mut Vec<Proposal>, refused: &mut Vec<Refused>, report: &Report, goal: Goal) -> bool {
    let mut are_kept = true;
    proposals.retain_mut(|proposal| {
        let Some(found) = report.side.limits.get(proposal.limit as usize).filter(|found| !goal.is_kept(found)) else {
            return true;
        };
        are_kept = false;
        let suggestion = found.suggestion.as_ref().and_then(|suggestion| suggestion.as_ref().ok());
        let number = suggestion.and_then(|suggestion| suggestion.both).map(|found| rounded_up(found.number));
        let next = number.and_then(|number| Some((number, with_number(&proposal.numbers, Axis::Both, number)?)));
        let Some((number, numbers)) = next.filter(|(number, _)| *number > proposal.number) else {
            let why = "no numbers were found that keep the share when the other limits have theirs".to_owned();
            refused.push(Refused { limit: proposal.limit, name: found.name.clone(), why });
            return false;
        };
        (proposal.number, proposal.numbers) = (number, numbers);
        true
    });
    are_kept
}

/// To two digits.
fn rounded_up(number: u64) -> u64 {
    let unit = 10_u64.pow(number.max(1).ilog10().saturating_sub(1));
    number.div_ceil(unit).saturating_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_up_to_two_digits() {
        assert_eq!(
            [1, 9, 39, 99, 100, 101, 481, 9_901, 12_345].map(rounded_up),
            [1, 9, 39, 99, 100, 110, 490, 10_000, 13_000]
        );
        assert!(rounded_up(u64::MAX) >= u64::MAX - 1);
    }
}
