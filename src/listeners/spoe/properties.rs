//! Properties of the SPOE parsers, for the proptests below and `integration/fuzz.sh`.

#![expect(clippy::unwrap_used, reason = "a property that does not hold is a panic")]

use super::SpoeOptions;
use super::check::Check;
use super::connection::next;
use super::data::{Data, write_data, write_integer, write_string};
use super::frame::{Ack, Frame, LENGTH_BYTES, MAX_FRAME, Notify, write_disconnect};
use crate::message::headers;

/// Each of a connection's frames is read or rejected with a reason, and none is longer than was agreed.
///
/// # Panics
///
/// If that does not hold of these bytes.
pub fn frames(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(Some((body, length))) = next(rest, MAX_FRAME) {
        assert_eq!(length, body.len() + LENGTH_BYTES);
        frame(body);
        rest = &rest[length..];
    }
    // Without a length to get right, more of what is thought up is a frame.
    frame(bytes);
}

fn frame(body: &[u8]) {
    let mut answer = Vec::new();
    match Frame::parse(body) {
        Ok(Frame::Hello(hello)) => hello.answer(&mut answer),
        Ok(Frame::Disconnect { .. }) => {}
        Ok(Frame::Notify(notify)) => {
            again(&notify);
            asked(&notify);
            let mut ack = Ack::new(&notify, 256);
            for value in [Data::Bool(true), Data::Text(&[b'x'; 200]), Data::Unsigned(429)] {
                ack.set("variable", value);
            }
            answer = ack.finish();
        }
        Err(status) => write_disconnect(&mut answer, status),
    }
    assert!(answer.len() <= 256 + LENGTH_BYTES);
    if !answer.is_empty() {
        assert_eq!(next(&answer, 256).unwrap().unwrap().1, answer.len());
    }
}

/// A question that is written again is the same question.
fn again(notify: &Notify<'_>) {
    let Some(arguments) = &notify.check else { return };
    // NOTIFY and the flag that this is all of it.
    let mut body = vec![3, 0, 0, 0, 1];
    write_integer(&mut body, notify.stream);
    write_integer(&mut body, notify.frame);
    write_string(&mut body, b"check");
    body.push(arguments.len().try_into().unwrap());
    for (name, value) in arguments {
        write_string(&mut body, name);
        write_data(&mut body, *value);
    }
    let Ok(Frame::Notify(found)) = Frame::parse(&body) else { panic!("{body:x?}") };
    assert_eq!((found.stream, found.frame, &found.check), (notify.stream, notify.frame, &notify.check));
}

/// Rules see only valid requests.
fn asked(notify: &Notify<'_>) {
    let Some(arguments) = &notify.check else { return };
    let Ok(mut check) = Check::read(arguments, &SpoeOptions::sample()) else { return };
    let mut headers = std::mem::take(&mut check.headers);
    let Ok(view) = check.received(&mut headers, &SpoeOptions::sample()) else { return };
    assert!(view.path.starts_with('/') && !view.host.bytes().any(|byte| byte.is_ascii_uppercase()));
    assert!(view.headers.iter().all(|(name, value)| headers::is_name(name) && headers::is_value(value)));
    assert!(!view.headers.has_underscores());
    assert!(check.client.is_none_or(|client| client.address == client.address.to_canonical()));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::frame::tests::{hello, notify};
    use super::*;

    fn value() -> impl Strategy<Value = Vec<u8>> {
        let text = "(GET|get|/a|/%2e%2e/b|\\*|http://A/|x: 1\r\n|[ -~]|é){0,3}";
        let data = (0_u8..12, any::<u64>(), text).prop_map(|(kind, number, text)| {
            let mut bytes = Vec::new();
            write_data(
                &mut bytes,
                match kind {
                    0 => Data::Null,
                    1 => Data::Bool(number % 2 == 0),
                    2 => Data::Signed(number.cast_signed()),
                    3 => Data::Unsigned(number),
                    4 => Data::Address(u32::try_from(number >> 32).unwrap().to_be_bytes().into()),
                    5 => Data::Binary(text.as_bytes()),
                    _ => Data::Text(text.as_bytes()),
                },
            );
            bytes
        });
        let name = "(method|path|uri|query|host|src|headers|tls_subject|x|)";
        (name, data).prop_map(|(name, data)| {
            let mut bytes = Vec::new();
            write_string(&mut bytes, name.as_bytes());
            bytes.extend(data);
            bytes
        })
    }

    proptest! {
        #[test]
        fn of_questions(values in prop::collection::vec(value(), 0..6), place in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut body = notify(7, 300, "check", &[]);
            *body.last_mut().unwrap() = u8::try_from(values.len()).unwrap();
            body.extend(values.concat());
            frame(&body);
            let place = place.index(body.len());
            frame(&body[..place]);
            body[place] = byte;
            frame(&body);
        }

        #[test]
        fn of_hellos(place in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut body = hello(&[]);
            let place = place.index(body.len());
            frame(&body[..place]);
            body[place] = byte;
            frame(&body);
        }

        #[test]
        fn of_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            frames(&bytes);
        }
    }
}
