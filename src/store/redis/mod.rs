//! Buckets in a Redis server.

use super::{Batch, StoreError};
use crate::engine::charge::Decision;

/// Placeholder until the store lands.
pub struct RedisStore;
impl RedisStore {
    /// Decides the charges of one request, all or nothing.
    pub async fn decide(&self, _batch: &Batch<'_>) -> Result<Vec<Decision>, StoreError> {
        Err(StoreError::Down)
    }
}
