//! The Helm chart: what it renders fits Kubernetes' schemas and runs.

mod cases;
mod combinations;
mod egress;
mod flags;
mod kinds;
mod mistakes;
mod newcomer;
mod notes;
mod pod;
mod rendering;
mod running;
mod security;
mod users;
mod values;
