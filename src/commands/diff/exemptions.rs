//! Changes of `exempt`, for the limits that no longer count the same requests.

use super::conditions::shown;
use super::limits::Change;
use super::source::Rulebook;
use crate::engine::limit::Limit;
use crate::engine::limit::exemptions::Exemption;
use crate::engine::telling::coverage::covers;
use crate::engine::telling::order::Effect;

/// The effect of exempting more requests from a limit, or fewer.
pub(super) fn of_exemptions(old: (&Rulebook, &Limit), new: (&Rulebook, &Limit)) -> Option<Change> {
    let [before, after] = [old, new].map(exemptions);
    let exempts_all = |few: &[&Exemption], many: &[&Exemption]| {
        few.iter().all(|one| many.iter().any(|other| covers(&other.conditions, &one.conditions)))
    };
    let effect = Effect { stricter: !exempts_all(&before, &after), looser: !exempts_all(&after, &before) };
    let note = match effect {
        Effect::NONE => return None,
        Effect::STRICTER => "exempts fewer requests",
        Effect::LOOSER => "exempts more requests",
        _ => "exempts other requests",
    };
    let list = |exemptions: &[&Exemption]| {
        let each: Vec<String> = exemptions.iter().map(|one| shown(&one.conditions)).collect();
        if each.is_empty() { "nothing".to_owned() } else { each.join("; ") }
    };
    Some(Change { what: "exempt".into(), from: list(&before), to: list(&after), effect, note: note.to_owned() })
}

/// The exemptions from a limit.
fn exemptions<'r>((rules, limit): (&'r Rulebook, &Limit)) -> Vec<&'r Exemption> {
    let place = rules.rules.find(&limit.name).map(|(place, _)| place);
    rules.rules.exemptions().filter(|one| place.as_ref().is_ok_and(|place| one.is_from(*place))).collect()
}
