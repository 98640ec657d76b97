//! The Helm chart: what it renders is of Kubernetes' schemas and runs.

mod cases;
mod combinations;
mod flags;
mod kinds;
mod kubelet;
mod newcomer;
mod notes;
mod refusals;
mod rendering;
mod running;
mod security;
mod values;
