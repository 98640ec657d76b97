//! A middleware that limits, as limits of the rules file.

use super::super::document::Document;
use super::super::gateway::{By, GatewayLimit, Rate, whole};
use super::super::scope::Scope;
use super::super::settings::SettingState;
use super::super::text::piece;
use super::objects::Object;
use crate::engine::text::duration;

/// A middleware that limits, at the routers where it does.
pub(super) struct Draft<'o> {
    pub(super) middleware: &'o Object,
    pub(super) kind: &'static str,
    pub(super) router: String,
    pub(super) scope: Scope,
    pub(super) notes: Vec<String>,
    pub(super) wider: Vec<String>,
}

impl Draft<'_> {
    /// A setting of the limit, which counts as used.
    fn value(&self, name: &str) -> Option<&str> {
        let setting = self.middleware.get(&format!("{}.{name}", self.kind))?;
        setting.state.set(SettingState::Used);
        Some(&setting.value)
    }

    pub(super) fn write(&self, is_split: bool, document: &mut Document) {
        let settings =
            || self.middleware.settings.iter().filter(|setting| setting.path.split('.').next() == Some(self.kind));
        let origin = settings().next().map(|setting| setting.origin.clone()).unwrap_or_default();
        let tell = |why: String, document: &mut Document| {
            settings().for_each(|setting| setting.state.set(SettingState::Told));
            document.unused(origin.note(format!(
                "{} of {} at the router {}: {why}.",
                self.kind,
                piece(&self.middleware.name),
                piece(&self.router)
            )));
        };
        let rate = match self.rate() {
            Ok(rate) => rate,
            Err(why) => return tell(why, document),
        };
        let (by, missing) = self.by();
        let mut notes = self.notes.clone();
        if self.value("sourcecriterion.ipstrategy.depth").is_some()
            || self.value("sourcecriterion.ipstrategy.excludedips").is_some()
        {
            notes.push(
                origin.note("the address is from `X-Forwarded-For`: give Weir the proxies in `--trusted-proxies`."),
            );
        }
        if is_split {
            notes.push(origin.note(
                "Traefik counts this limit together with others of the same name; here each has buckets of its own.",
            ));
        }
        let limit = GatewayLimit {
            name: format!("{}-{}", self.router, self.middleware.name),
            identity: format!("{}\n{} {} ", self.middleware.name, self.kind, self.router),
            origin: origin.clone(),
            source: format!("{} of {} at {}", self.kind, self.middleware.name, self.router),
            notes,
            wider: self.wider.clone(),
            scope: self.scope.clone(),
            by,
            missing,
            rate,
            status: None,
            is_shadow: false,
        };
        if !limit.write(document) {
            settings().for_each(|setting| setting.state.set(SettingState::Told));
        }
    }

    fn rate(&self) -> Result<Rate, String> {
        if self.kind == "inflightreq" {
            let amount = self.value("amount").unwrap_or("0");
            let amount = amount.parse().map_err(|_| format!("invalid amount {}", piece(amount)))?;
            return if amount == 0 {
                Err("without `amount` it denies every request; write `deny: true`".to_owned())
            } else {
                Ok(Rate::InFlight(amount))
            };
        }
        let average = self.value("average").unwrap_or("0");
        if self.middleware.settings.iter().any(|setting| setting.path.contains("rateset")) || average == "0" {
            return Err("without `average` it limits nothing".to_owned());
        }
        let period = self.value("period").unwrap_or("1s");
        let period =
            if period.bytes().all(|byte| byte.is_ascii_digit()) { format!("{period}s") } else { period.to_owned() };
        let period = duration::parse(&period).map_err(|(message, _)| message)? / 1_000;
        let (count, period) =
            whole(average, period.max(1)).ok_or_else(|| format!("invalid average {}", piece(average)))?;
        let burst = self.value("burst").and_then(|burst| burst.parse::<u64>().ok()).unwrap_or(1).max(1);
        // A request waits for half an interval at most, by a rate that is rounded down, or for half a second.
        let per_second = u128::from(count) * 1_000_000 / u128::from(period);
        let delay =
            500_000_u128.checked_div(per_second).map_or(500_000, |delay| u64::try_from(delay).unwrap_or_default());
        Ok(Rate::Bucket { burst, count, period, delay })
    }

    /// The key, and what happens to requests without it.
    fn by(&self) -> (Vec<By>, Option<&'static str>) {
        if let Some(name) = self.value("sourcecriterion.requestheadername") {
            // Go keeps `Host` apart from the headers, so it is missing from all requests.
            let by = Some(By::Header(name.to_ascii_lowercase())).filter(|_| !name.eq_ignore_ascii_case("host"));
            let missing = by.as_ref().map(|_| "shared");
            return (by.into_iter().collect(), missing);
        }
        if self.value("sourcecriterion.requesthost") == Some("true") {
            return (vec![By::Word("host")], None);
        }
        let bits = self.value("sourcecriterion.ipstrategy.ipv6subnet").and_then(|bits| bits.parse().ok());
        let has_strategy = self
            .middleware
            .settings
            .iter()
            .any(|setting| setting.path.starts_with(&format!("{}.sourcecriterion.ipstrategy", self.kind)));
        let _ = self.value("sourcecriterion.ipstrategy");
        match self.kind {
            "inflightreq" if !has_strategy => (vec![By::Word("host")], None),
            _ => (vec![By::Address(bits.unwrap_or(128))], None),
        }
    }
}
