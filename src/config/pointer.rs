//! Reads JSON pointers.

use super::node::Node;
use super::problem::{ReadResult, quoted};
use crate::message::json_pointer::{JsonPointer, PointerError};

/// Reads a JSON pointer, such as `/usage/total_tokens`.
pub(super) fn pointer(node: &Node) -> ReadResult<JsonPointer> {
    let text = node.text()?;
    JsonPointer::parse(text).map_err(|error| {
        let help = match error {
            PointerError::NoSlash => {
                let path = text.strip_prefix("$.").unwrap_or(text);
                format!("write `/{}`", path.replace('.', "/"))
            }
            PointerError::Empty | PointerError::Escape => "write it as in `/usage/total_tokens`".to_owned(),
            PointerError::TooLong => "use a shorter one".to_owned(),
        };
        node.error(format!("invalid JSON pointer {}: {error}", quoted(text)), help)
    })
}
