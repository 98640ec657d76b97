//! A reader of DER (X.690 section 10), as much of it as a certificate's names and dates take.
//!
//! rustls checks certificates but shows neither their dates nor the parts of their subjects. A parser of all of X.509
//! would be nine crates more for three fields of certificates that are verified, or our own, before they are read here.

/// The rest of a series of values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

/// One value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value<'a> {
    /// The identifier octet: class, whether it is constructed, number.
    pub(super) tag: u8,
    /// The contents octets.
    pub(super) contents: &'a [u8],
    /// All of it, with identifier and length.
    pub(super) whole: &'a [u8],
}

/// `SEQUENCE`.
pub(super) const SEQUENCE: u8 = 0x30;
/// `SET`.
pub(super) const SET: u8 = 0x31;
/// `OBJECT IDENTIFIER`.
pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
/// `OCTET STRING`.
pub(super) const OCTET_STRING: u8 = 0x04;
/// `BOOLEAN`.
pub(super) const BOOLEAN: u8 = 0x01;

/// `[number]`, constructed: what a value with an explicit tag is wrapped in.
pub(super) const fn explicit(number: u8) -> u8 {
    0xa0 | number
}

/// `[number]`, primitive: a string with an implicit tag.
pub(super) const fn implicit(number: u8) -> u8 {
    0x80 | number
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether there is no value left.
    pub(super) const fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next value; `None` if there is none, or what comes is no DER.
    pub(super) fn value(&mut self) -> Option<Value<'a>> {
        let (&tag, after) = self.rest.split_first()?;
        // Numbers above 30 take more octets. Nothing in a certificate has one.
        if tag & 0x1f == 0x1f {
            return None;
        }
        let (&first, after) = after.split_first()?;
        let (length, after) = match first {
            0..=0x7f => (usize::from(first), after),
            // More than three octets of length are 16 MiB of contents, and 0x80 is the indefinite form of BER.
            0x81..=0x83 => {
                let (octets, after) = after.split_at_checked(usize::from(first & 0x7f))?;
                let length = octets.iter().fold(0, |length, octet| length << 8 | usize::from(*octet));
                let is_shortest = length > 0x7f && octets.first() != Some(&0);
                (is_shortest.then_some(length)?, after)
            }
            _ => return None,
        };
        let (contents, after) = after.split_at_checked(length)?;
        let whole = self.rest.get(..self.rest.len() - after.len())?;
        self.rest = after;
        Some(Value { tag, contents, whole })
    }

    /// The contents of the next value if it has this tag. Otherwise nothing is taken.
    pub(super) fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let before = *self;
        match self.value() {
            Some(value) if value.tag == tag => Some(value.contents),
            _ => {
                *self = before;
                None
            }
        }
    }

    /// A reader of the values within the next one, which must have this tag.
    pub(super) fn enter(&mut self, tag: u8) -> Option<Self> {
        self.take(tag).map(Self::new)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: Option<(u8, usize)>) {
        let value = Reader::new(bytes).value();
        assert_eq!(value.map(|value| (value.tag, value.contents.len())), expected, "{bytes:02x?}");
    }

    #[test]
    fn lengths_are_in_their_shortest_form_and_within_bounds() {
        check(&[], None);
        check(&[0x04], None);
        check(&[0x04, 0x00], Some((0x04, 0)));
        check(&[0x04, 0x02, 1], None);
        check(&[0x04, 0x02, 1, 2, 3], Some((0x04, 2)));
        check(&[&[0x04, 0x81, 0x80][..], &[0; 128]].concat(), Some((0x04, 128)));
        check(&[&[0x04, 0x81, 0x7f][..], &[0; 127]].concat(), None);
        check(&[&[0x04, 0x82, 0x00, 0x80][..], &[0; 128]].concat(), None);
        check(&[&[0x04, 0x82, 0x01, 0x00][..], &[0; 256]].concat(), Some((0x04, 256)));
        check(&[0x04, 0x80, 0, 0], None);
        check(&[0x04, 0x84, 0, 0, 0, 1, 0], None);
        check(&[0x1f, 0x01, 0], None);
    }

    #[test]
    fn values_follow_each_other() {
        let bytes = [0x30, 0x05, 0x02, 0x01, 7, 0x05, 0x00];
        let mut inner = Reader::new(&bytes).enter(SEQUENCE).unwrap();
        assert_eq!(inner.take(OCTET_STRING), None);
        assert_eq!(inner.value().unwrap().whole, [0x02, 0x01, 7]);
        assert_eq!(inner.take(0x05), Some(&[][..]));
        assert!(inner.is_at_end() && inner.value().is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes);
            let mut total = 0;
            while let Some(value) = reader.value() {
                total += value.whole.len();
            }
            prop_assert!(total <= bytes.len());
        }
    }
}
