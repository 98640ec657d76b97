//! Tests that need the outside: sockets, files, other programs.

mod layers;
