//! Logs in the shapes of public data sets: each line is decided, or left out for a reason.

use serde_json::Value;

use super::{directory, simulate};

const RULES: &str = "limits:\n  PerIp: { by: ip, burst: 1 }\n  All: { by: global, burst: 1000000 }\n";

/// Those of nginx in the examples of Elastic.
const ELASTIC_NGINX: &str = r#"93.184.71.3 - - [17/May/2015:08:05:32 +0000] "GET /downloads/product_1 HTTP/1.1" 304 0 "-" "Debian APT-HTTP/1.3 (0.8.16~exp12)"
93.184.71.3 - - [17/May/2015:08:05:23 +0000] "GET /downloads/product_1 HTTP/1.1" 304 0 "-" "Debian APT-HTTP/1.3 (0.8.16~exp12)"
80.91.33.133 - - [17/May/2015:08:05:24 +0000] "GET /downloads/product_1 HTTP/1.1" 404 340 "-" "Debian APT-HTTP/1.3"
217.168.17.5 - - [17/May/2015:08:05:34 +0000] "HEAD /downloads/product_2 HTTP/1.1" 403 0 "-" "-"
"#;

const ELASTIC_APACHE: &str = r#"83.149.9.216 - - [17/May/2015:10:05:03 +0000] "GET /presentations/images/kibana-search.png HTTP/1.1" 200 203023 "http://a.example/presentations/" "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_9_1)"
83.149.9.216 - - [17/May/2015:10:05:43 +0000] "GET /presentations/images/kibana-dashboard3.png HTTP/1.1" 200 171717 "-" "Mozilla/5.0"
110.136.166.128 - - [17/May/2015:10:05:35 +0000] "GET /files/?C=N;O=D HTTP/1.0" 200 - "-" "-"
46.105.14.53 - - [17/May/2015:10:05:44 +0000] "GET /blog/tags/puppet?flav=rss20 HTTP/1.1" 200 14872 "-" "UniversalFeedParser/4.2-pre-314-svn +http://feedparser.org/"
66.249.73.185 - - [17/May/2015:10:05:08 +0000] "-" 408 - "-" "-"
"#;

const ELASTIC_JSON: &str = r#"{"time": "17/May/2015:08:05:32 +0000", "remote_ip": "93.184.71.3", "remote_user": "-", "request": "GET /downloads/product_1 HTTP/1.1", "response": 304, "bytes": 0, "referrer": "-", "agent": "Debian APT-HTTP/1.3 (0.8.16~exp12)"}
{"time": "17/May/2015:08:05:23 +0000", "remote_ip": "93.184.71.3", "remote_user": "-", "request": "GET /downloads/product_1 HTTP/1.1", "response": 304, "bytes": 0, "referrer": "-", "agent": "Debian APT-HTTP/1.3 (0.8.16~exp12)"}
{"time": "17/May/2015:08:05:24 +0000", "remote_ip": "80.91.33.133", "remote_user": "-", "request": "GET /downloads/product_1 HTTP/1.1", "response": 304, "bytes": 0, "referrer": "-", "agent": "-"}
"#;

/// NASA's of 1995: names of hosts, HTTP/0.9, requests with quotes and spaces, and a last line that is cut off.
const NASA: &str = r#"199.72.81.55 - - [01/Jul/1995:00:00:01 -0400] "GET /history/apollo/ HTTP/1.0" 200 6245
unicomp6.unicomp.net - - [01/Jul/1995:00:00:06 -0400] "GET /shuttle/countdown/ HTTP/1.0" 200 3985
199.120.110.21 - - [01/Jul/1995:00:00:09 -0400] "GET /shuttle/missions/sts-73/mission-sts-73.html HTTP/1.0" 200 4085
burger.letters.com - - [01/Jul/1995:00:00:11 -0400] "GET /shuttle/countdown/liftoff.html HTTP/1.0" 304 0
199.72.81.55 - - [01/Jul/1995:00:00:12 -0400] "GET /images/ " 400 -
199.72.81.55 - - [01/Jul/1995:00:00:13 -0400] "GET /htbin/cdt_main.pl" 200 3214
199.72.81.55 - - [01/Jul/1995:00:00:14 -0400] "GET /shuttle/"missions" HTTP/1.0" 404 -
199.72.81.55 - - [01/Jul/1995:00:00:15 -0400] "" 400 -
alyssa.p"#;

/// Loghub's of Apache is an error log.
const LOGHUB_APACHE: &str =
    "[Sun Dec 04 04:47:44 2005] [notice] workerEnv.init() ok /etc/httpd/conf/workers2.properties
[Sun Dec 04 04:47:44 2005] [error] mod_jk child workerEnv in error state 6
[Sun Dec 04 04:51:08 2005] [error] [client 192.0.2.7] Directory index forbidden by rule: /var/www/html/
";

#[test]
fn every_line_of_public_logs_is_decided_or_left_out_for_a_reason() {
    for (name, log, decided, left_out) in [
        ("elastic nginx", ELASTIC_NGINX, 4, &[][..]),
        ("elastic apache", ELASTIC_APACHE, 4, &[("rejected", 1)]),
        ("elastic json", ELASTIC_JSON, 3, &[]),
        ("nasa", NASA, 4, &[("no_client", 2), ("unreadable", 2), ("rejected", 1)]),
    ] {
        let found = simulate(directory(RULES, log).path(), &["--format", "json", "--allow-unread"]);
        assert_eq!(found.code, Some(0), "{name}: {}", found.text());
        let report: Value = serde_json::from_str(&found.out).unwrap();
        let reasons = report["left_out"].as_array().unwrap().iter();
        let reasons: Vec<_> =
            reasons.map(|left| (left["reason"].as_str().unwrap(), left["lines"].as_u64().unwrap())).collect();
        assert_eq!((report["requests"].as_u64(), &reasons[..]), (Some(decided), left_out), "{name}: {report}");
        assert_eq!(report["lines"].as_u64(), Some(log.lines().count() as u64), "{name}: {report}");
    }
    let found = simulate(directory(RULES, LOGHUB_APACHE).path(), &[]);
    assert!(found.code == Some(1) && found.err.contains("its format is not known"), "{}", found.text());
    let found = simulate(directory(RULES, LOGHUB_APACHE).path(), &["--log-format", "common", "--allow-unread"]);
    assert!(found.code == Some(1) && found.err.contains("no line could be read"), "{}", found.text());
}
