//! The requests of an instance of a plugin, in as few parts as `match` can say.

use super::scope::Scope;

/// A scope, and what Weir takes more.
pub(super) type Part = (Scope, Vec<String>);

/// Joins parts where `match` can say both in one.
pub(super) fn joined(mut parts: Vec<Part>) -> Vec<Part> {
    loop {
        let before = parts.len();
        let mut fewer: Vec<Part> = Vec::new();
        for (scope, mut notes) in parts {
            match fewer.iter_mut().find_map(|(known, notes)| Some((either(known, &scope)?, known, notes))) {
                Some((both, known, known_notes)) => {
                    *known = both;
                    notes.retain(|note| !known_notes.contains(note));
                    known_notes.extend(notes);
                }
                None => fewer.push((scope, notes)),
            }
        }
        parts = fewer;
        if parts.len() == before {
            return parts;
        }
    }
}

/// The requests of either. What one excepts, the other may except too, if it has none of these requests.
fn either(own: &Scope, other: &Scope) -> Option<Scope> {
    let mut except = own.except.clone();
    except.extend(other.except.iter().filter(|taken| !own.except.contains(taken)).cloned());
    let with_all = |scope: &Scope| {
        let has_none = |taken: &Scope| {
            let mut left = scope.clone();
            left.subtract(taken) && left == *scope
        };
        except.iter().all(has_none).then(|| Scope { except: except.clone(), ..scope.clone() })
    };
    with_all(own)?.or(&with_all(other)?)
}
