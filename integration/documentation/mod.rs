//! The pages: consoles are run, rules are checked, names and links are looked up, and the site is built.

mod blocks;
mod consoles;
mod excerpts;
mod links;
mod lints;
mod names;
mod newcomer;
mod page;
mod release;
mod session;
mod site;
mod spelling;
