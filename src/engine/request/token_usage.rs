//! The tokens that the APIs of models report, by kind, and what they cost.

use std::fmt;

use self::TokenCount::{Beside, Inside, Total};
use self::TokenKind::{CacheWrite, CachedInput, Input, Output, Reasoning};
use crate::engine::algorithms::micros::EXACT;
use crate::message::json_pointer::JsonPointer;

label! {
    /// The APIs whose responses have the tokens used.
    pub enum Usage {
        OpenAi = "openai",
        Anthropic = "anthropic",
        Gemini = "gemini",
    }
}

label! {
    /// The kinds of tokens that prices differ in.
    pub enum TokenKind {
        Input = "input",
        CachedInput = "cached_input",
        CacheWrite = "cache_write",
        Output = "output",
        Reasoning = "reasoning",
    }
}

/// The tokens that a number in a usage counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenCount {
    /// All tokens, also those of no known kind.
    Total,
    /// Tokens of this kind, beside all others.
    Beside(TokenKind),
    /// Tokens of this kind that are part of the number of [`TokenKind::container`], too.
    Inside(TokenKind),
}

/// A number in a usage, and its places there. The first place that has it counts: some servers of chat completions add the
/// names of the Responses API with zeros.
pub(super) type UsageCount = (TokenCount, &'static [&'static str]);

const OPENAI: [UsageCount; 6] = [
    (Total, &["/total_tokens"]),
    (Beside(Input), &["/prompt_tokens", "/input_tokens"]),
    (Inside(CachedInput), &["/prompt_tokens_details/cached_tokens", "/input_tokens_details/cached_tokens"]),
    (Inside(CacheWrite), &["/prompt_tokens_details/cache_write_tokens", "/input_tokens_details/cache_write_tokens"]),
    (Beside(Output), &["/completion_tokens", "/output_tokens"]),
    (Inside(Reasoning), &["/completion_tokens_details/reasoning_tokens", "/output_tokens_details/reasoning_tokens"]),
];

const ANTHROPIC: [UsageCount; 5] = [
    (Beside(Input), &["/input_tokens"]),
    (Beside(CacheWrite), &["/cache_creation_input_tokens"]),
    (Beside(CachedInput), &["/cache_read_input_tokens"]),
    (Beside(Output), &["/output_tokens"]),
    (Inside(Reasoning), &["/output_tokens_details/thinking_tokens"]),
];

const GEMINI: [UsageCount; 6] = [
    (Total, &["/totalTokenCount"]),
    (Beside(Input), &["/promptTokenCount"]),
    // The results of tools.
    (Beside(Input), &["/toolUsePromptTokenCount"]),
    (Inside(CachedInput), &["/cachedContentTokenCount"]),
    (Beside(Output), &["/candidatesTokenCount"]),
    (Beside(Reasoning), &["/thoughtsTokenCount"]),
];

impl Usage {
    /// The places of the usage in a document.
    pub(super) fn places(self) -> Vec<JsonPointer> {
        match self {
            // The second is of the last event of a streamed response of the Responses API.
            Self::OpenAi => vec![JsonPointer::of_keys(["usage"]), JsonPointer::of_keys(["response", "usage"])],
            // A stream has all numbers in `message_start`, and the output so far in each `message_delta`.
            Self::Anthropic => vec![JsonPointer::of_keys(["usage"]), JsonPointer::of_keys(["message", "usage"])],
            // Without `alt=sse`, a streamed response is an array.
            Self::Gemini => {
                let place = JsonPointer::of_keys(["usageMetadata"]);
                vec![place.clone(), place.in_each_element()]
            }
        }
    }

    /// The numbers that are needed. Tokens that cost the same need no parts.
    pub(super) fn counts(self, by_kind: bool) -> impl Iterator<Item = &'static UsageCount> {
        let all: &[UsageCount] = match self {
            Self::OpenAi => &OPENAI,
            Self::Anthropic => &ANTHROPIC,
            Self::Gemini => &GEMINI,
        };
        let has_total = all.iter().any(|(counted, _)| *counted == Total);
        all.iter().filter(move |(counted, _)| match counted {
            Total => true,
            Beside(_) => by_kind || !has_total,
            Inside(_) => by_kind,
        })
    }

    /// Returns whether its responses report the tokens of a kind.
    pub fn reports(self, kind: TokenKind) -> bool {
        self.counts(true)
            .any(|(counted, _)| matches!(counted, Beside(reported) | Inside(reported) if *reported == kind))
    }
}

impl TokenKind {
    /// The kind that these tokens count as if their own has no weight or number; `None` for the kinds that contain others.
    pub const fn container(self) -> Option<Self> {
        match self {
            CachedInput | CacheWrite => Some(Input),
            Reasoning => Some(Output),
            Input | Output => None,
        }
    }
}

/// The cost of a token of each kind, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenWeights([u32; TokenKind::ALL.len()]);

impl TokenWeights {
    /// A weight of 1.
    pub const ONE: u32 = 1_000;

    pub const LARGEST: u32 = 1_000 * Self::ONE;

    /// Tokens that are all the same.
    pub const EQUAL: Self = Self([Self::ONE; TokenKind::ALL.len()]);

    /// Makes weights of those given. A kind without one weighs as the kind that contains it, or 1.
    pub fn new(given: impl Fn(TokenKind) -> Option<u32>) -> Self {
        Self(TokenKind::ALL.map(|kind| given(kind).or_else(|| given(kind.container()?)).unwrap_or(Self::ONE)))
    }

    pub fn are_free(&self) -> bool {
        self.0.iter().all(|weight| *weight == 0)
    }

    /// The cost of the numbers in a response, rounded up. If they contradict each other, the error is a text for the log.
    pub(super) fn cost(&self, counts: &[(TokenCount, u64)]) -> Result<u64, &'static str> {
        let mut tokens = [0i128; TokenKind::ALL.len()];
        let (mut total, mut is_known) = (0, [false; TokenKind::ALL.len()]);
        for (counted, count) in counts {
            match counted {
                Total => total = i128::from(*count),
                Beside(kind) | Inside(kind) => {
                    tokens[*kind as usize] += i128::from(*count);
                    is_known[*kind as usize] = true;
                }
            }
        }
        for (counted, count) in counts {
            let Inside(kind) = counted else { continue };
            let Some(container) = kind.container().filter(|container| is_known[*container as usize]) else { continue };
            tokens[container as usize] -= i128::from(*count);
            if tokens[container as usize] < 0 {
                return Err("a part that exceeds its whole");
            }
        }
        let rest = (total - tokens.iter().sum::<i128>()).max(0);
        let weighted = |(count, weight): (&i128, &u32)| *count * i128::from(*weight);
        let sum: i128 = tokens.iter().zip(&self.0).map(weighted).sum::<i128>() + rest * i128::from(Self::ONE);
        let cost = (sum + i128::from(Self::ONE) - 1) / i128::from(Self::ONE);
        Ok(u64::try_from(cost).map_or(EXACT - 1, |cost| cost.min(EXACT - 1)))
    }
}

impl fmt::Display for TokenWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (kind, weight)) in TokenKind::LABELS.iter().zip(self.0).enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{kind} {}", f64::from(weight) / f64::from(Self::ONE))?;
        }
        Ok(())
    }
}
