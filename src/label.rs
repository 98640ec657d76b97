//! Closed sets of labels, each declared once: of metrics, of the log, of replies.

/// An enum that `label!` has declared.
pub trait Label: Copy + 'static {
    /// In the order of the variants.
    const ALL_LABELS: &'static [&'static str];

    /// The place of its label in [`Self::ALL_LABELS`].
    fn place(self) -> usize;
}

/// Declares an enum whose variants have a label each.
macro_rules! label {
    ($(#[$meta:meta])* $visibility:vis enum $name:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $label:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $name {
            $($(#[$variant_meta])* $variant,)+
        }

        impl $name {
            pub const ALL: [Self; [$($label),+].len()] = [$(Self::$variant),+];

            /// In the order of [`Self::ALL`].
            pub const LABELS: [&'static str; Self::ALL.len()] = [$($label),+];

            pub const fn label(self) -> &'static str {
                Self::LABELS[self as usize]
            }
        }

        impl $crate::label::Label for $name {
            const ALL_LABELS: &'static [&'static str] = &Self::LABELS;

            fn place(self) -> usize {
                self as usize
            }
        }
    };
}
