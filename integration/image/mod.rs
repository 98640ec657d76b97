//! The image, without a container engine: the Dockerfile as its builder's parser reads it, the files that its build
//! step makes, and the binary.

mod contents;
mod dockerfile;
