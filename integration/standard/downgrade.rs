//! 5.3: HTTP/2 in front of HTTP/1.1. Frames and header blocks are written byte by byte, so that what no library sends
//! can be sent.
