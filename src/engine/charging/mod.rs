//! From a request, named charges or descriptors to charges: a limit gives an id its [`terms`], and these make the charges of a
//! [`plan`].

pub mod algorithm_input;
pub mod call_numbers;
pub mod current_numbers;
pub mod descriptors;
pub mod joint_plan;
pub mod named;
mod of_request;
pub mod plan;
mod quota_draft;
pub mod quota_lease;
pub mod quota_pool;
pub mod request_cost;
mod reservation;
pub mod settlement;
pub mod terms;
