//! The image. There is no engine for containers here, so it is tested as far as it goes without one: the Dockerfile is read
//! by the parser of its builder, its build step is run, and what comes out of that is started as a container is that has
//! a read-only root: as its unprivileged user, with nothing else in its file system, and nothing to write to.

mod container;
mod dockerfile;
mod health;
mod serving;
