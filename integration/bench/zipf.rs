//! Ids of unequal popularity.

/// Ids of which the nth is asked for as often as 1 / n^exponent says.
pub(crate) struct Zipf {
    /// The shares of all ids up to each one, of 2^63.
    upto: Vec<u64>,
}

impl Zipf {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "popularity is not exact"
    )]
    pub(crate) fn new(ids: u64, exponent: f64) -> Self {
        let share = |id: u64| (id as f64).powf(-exponent);
        let all: f64 = (1..=ids).map(share).sum();
        let mut sum = 0.0;
        let upto = (1..=ids).map(|id| {
            sum += share(id) / all;
            (sum * 2_f64.powi(63)) as u64
        });
        Self { upto: upto.collect() }
    }

    /// The id at a random number.
    pub(crate) fn id(&self, random: u64) -> u64 {
        self.upto.partition_point(|upto| *upto < random >> 1).min(self.upto.len() - 1) as u64
    }
}
