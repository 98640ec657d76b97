//! `metadata` of a rule, for Envoy: the values of `google.protobuf.Struct`.

/// A value of `google.protobuf.Struct`.
#[derive(Clone, Debug, PartialEq)]
pub enum Metadata {
    Null,
    Bool(bool),
    /// JSON and Struct have only doubles.
    Number(f64),
    Text(String),
    List(Vec<Metadata>),
    /// In the order of the file, with unique keys.
    Map(Vec<(String, Metadata)>),
}

impl Metadata {
    /// Merges the maps of `other` into this; existing values stay.
    pub fn merge(&mut self, other: &Self) {
        let (Self::Map(mine), Self::Map(theirs)) = (self, other) else { return };
        for (key, value) in theirs {
            match mine.iter_mut().find(|(known, _)| known == key) {
                Some((_, known)) => known.merge(value),
                None => mine.push((key.clone(), value.clone())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, Metadata)]) -> Metadata {
        Metadata::Map(entries.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect())
    }

    #[test]
    fn maps_merge_and_the_first_value_stays() {
        let number = Metadata::Number;
        let mut merged = map(&[("a", number(1.0)), ("m", map(&[("x", number(1.0))]))]);
        merged.merge(&map(&[
            ("a", number(2.0)),
            ("m", map(&[("x", number(2.0)), ("y", number(3.0))])),
            ("b", Metadata::Null),
        ]));
        let expected =
            map(&[("a", number(1.0)), ("m", map(&[("x", number(1.0)), ("y", number(3.0))])), ("b", Metadata::Null)]);
        assert_eq!(merged, expected);
    }
}
