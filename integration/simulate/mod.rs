//! `weir simulate`: what limits would have done to the requests of a log.

mod agreement;
mod formats;
mod lacking;
mod page;
mod rows;
mod unread;
