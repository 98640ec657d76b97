//! Flags for the headers that the proxy adds on request.

use clap::builder::BoolishValueParser;

use crate::listeners::proxy::{AddedHeaders, Cors, Origins};
use crate::message::host::host_of;

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Added headers")]
pub(super) struct AddedHeaderArgs {
    /// Give each request of the proxy an `X-Request-Id`, which the upstream, the access log and Weir's own replies tell; one from
    /// a trusted proxy is kept
    #[arg(long, value_name = "BOOL", env = "WEIR_REQUEST_ID", value_parser = BoolishValueParser::new(), num_args = 0..=1,
        require_equals = true, default_value = "false", default_missing_value = "true", hide_default_value = true)]
    request_id: bool,

    /// Tell the proxy's upstreams the client's address in `X-Real-IP`
    #[arg(long, value_name = "BOOL", env = "WEIR_REAL_IP", value_parser = BoolishValueParser::new(), num_args = 0..=1,
        require_equals = true, default_value = "false", default_missing_value = "true", hide_default_value = true)]
    real_ip: bool,

    /// Origins of web pages that may read the proxy's denials and errors (CORS), such as `https://app.example.com`; `*` for all
    #[arg(long, value_name = "ORIGIN", env = "WEIR_CORS_ORIGINS", value_delimiter = ',', value_parser = parse_origin)]
    cors_origins: Vec<String>,

    /// Let these pages read replies to requests with cookies as well
    #[arg(long, value_name = "BOOL", env = "WEIR_CORS_CREDENTIALS", value_parser = BoolishValueParser::new(), num_args = 0..=1,
        require_equals = true, default_value = "false", default_missing_value = "true", hide_default_value = true)]
    cors_credentials: bool,
}

impl AddedHeaderArgs {
    pub(super) fn headers(&self) -> AddedHeaders {
        let is_any = self.cors_origins.iter().any(|origin| origin == "*");
        let origins = if is_any { Origins::Any } else { Origins::Listed(self.cors_origins.clone().into()) };
        let cors = Cors { origins, credentials: self.cors_credentials };
        let cors = (!self.cors_origins.is_empty()).then_some(cors);
        AddedHeaders { request_id: self.request_id, real_ip: self.real_ip, cors }
    }

    /// Checks the flags that depend on each other.
    pub(super) fn check(&self) -> Result<(), String> {
        if !self.cors_credentials {
            return Ok(());
        }
        match self.cors_origins.as_slice() {
            [] => Err("--cors-credentials: add `--cors-origins` with the origins that it is for".to_owned()),
            origins if origins.iter().any(|origin| origin == "*") => {
                Err("--cors-credentials: browsers do not accept it with `--cors-origins '*'`; list the origins"
                    .to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// Parses an origin into what browsers send (RFC 6454 section 6.2), or `*`.
fn parse_origin(text: &str) -> Result<String, String> {
    let host = text.split_once("://").map(|(_, host)| host);
    let is_origin =
        host.is_some_and(|host| !host.contains(['/', '*', '@']) && host_of(host).is_some_and(|host| !host.is_empty()));
    let has_default_port = [("http://", ":80"), ("https://", ":443")]
        .iter()
        .any(|(scheme, port)| text.starts_with(scheme) && text.ends_with(port));
    if text == "*" || (is_origin && !has_default_port && !text.bytes().any(|byte| byte.is_ascii_uppercase())) {
        return Ok(text.to_owned());
    }
    Err("expected an origin as browsers send it, such as https://app.example.com, in lower case and without a path"
        .to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        added: AddedHeaderArgs,
    }

    fn args(given: &str) -> AddedHeaderArgs {
        Command::try_parse_from(["weir"].into_iter().chain(given.split_whitespace())).ok().unwrap().added
    }

    #[test]
    fn origins_are_written_as_browsers_send_them() {
        for origin in
            ["*", "https://app.example.com", "http://localhost:3000", "http://[::1]:8080", "capacitor://localhost"]
        {
            assert_eq!(parse_origin(origin).as_deref(), Ok(origin));
        }
        for origin in [
            "",
            "null",
            "app.example.com",
            "https://App.example.com",
            "https://a/",
            "https://*.a",
            "https://",
            "https://a:443",
        ] {
            assert!(parse_origin(origin).is_err(), "{origin}");
        }
    }

    #[test]
    fn credentials_need_listed_origins() {
        assert!(args("--cors-credentials").check().is_err_and(|error| error.contains("--cors-origins")));
        assert!(
            args("--cors-credentials --cors-origins=*").check().is_err_and(|error| error.contains("list the origins"))
        );
        let args = args("--cors-credentials --cors-origins https://a,https://b");
        let cors = args.headers().cors.unwrap();
        assert!(args.check().is_ok() && cors.credentials);
        assert_eq!(cors.origins, Origins::Listed(["https://a".to_owned(), "https://b".to_owned()].into()));
    }

    #[test]
    fn nothing_is_added_unless_asked_for() {
        let AddedHeaders { request_id, real_ip, cors } = args("").headers();
        assert!(!request_id && !real_ip && cors.is_none());
        let AddedHeaders { request_id, real_ip, cors } = args("--request-id --real-ip=yes --cors-origins *").headers();
        assert!(request_id && real_ip && cors.is_some_and(|cors| cors.origins == Origins::Any));
    }
}
