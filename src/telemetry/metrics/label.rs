//! Labels with closed sets of values.

/// Declares a label as an enum.
macro_rules! label {
    ($(#[$doc:meta])* $visibility:vis enum $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $value:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            pub const ALL: [Self; [$($value),+].len()] = [$(Self::$variant),+];

            /// The values in metrics, logs and traces, in the order of [`Self::ALL`].
            pub const LABELS: [&'static str; Self::ALL.len()] = [$($value),+];

            pub const fn label(self) -> &'static str {
                Self::LABELS[self as usize]
            }
        }
    };
}

pub(super) use label;
