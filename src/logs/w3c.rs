//! Logs in W3C's extended format, whose `#Fields` name the values of a line: those of IIS and `CloudFront`.

use super::escape::Escapes;
use super::field::Field;
use super::template::Template;

/// The line that names the values. It may come again, with others.
pub(super) const FIELDS: &[u8] = b"#Fields:";

const SOFTWARE: &[u8] = b"#Software:";

/// The program that wrote a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Iis,
    CloudFront,
    Other,
}

/// The format of the lines behind a directive.
#[derive(Clone, Debug)]
pub(super) struct W3c {
    program: Program,
    separator: u8,
    names: Vec<String>,
    pub(super) template: Template,
}

/// The effect of a line on those behind it.
pub(super) enum Directive {
    /// They are as before.
    Same,
    Other(Box<W3c>),
    /// Their values have no names, or no time.
    Unusable,
}

impl Program {
    fn of<'a>(lines: impl Iterator<Item = &'a [u8]>, names: &[String]) -> Self {
        let has = |part: &str| names.iter().any(|name| name.starts_with(part));
        let is_iis = |line: &[u8]| {
            let software = line.strip_prefix(SOFTWARE).unwrap_or_default();
            memchr::memmem::find(software, b"Internet Information Services").is_some()
        };
        match () {
            () if has("x-edge-") => Self::CloudFront,
            () if has("sc-win32-status") || lines.take_while(|line| is_directive(line)).any(is_iis) => Self::Iis,
            () => Self::Other,
        }
    }

    const fn escapes(self) -> Escapes {
        match self {
            Self::Iis => Escapes::Plus,
            Self::CloudFront => Escapes::Percent,
            Self::Other => Escapes::None,
        }
    }
}

impl W3c {
    /// The format that the first lines of a log name; `None` without a directive, or if that lacks the time.
    pub(super) fn of<'a>(lines: impl Iterator<Item = &'a [u8]> + Clone) -> Option<Self> {
        let names = names(lines.clone().find(|line| line.starts_with(FIELDS))?)?;
        let is_by_tabs = lines.clone().filter(|line| !is_directive(line)).any(|line| line.contains(&b'\t'));
        let (program, separator) = (Program::of(lines, &names), if is_by_tabs { b'\t' } else { b' ' });
        Self::behind(program, separator, names)
    }

    fn behind(program: Program, separator: u8, names: Vec<String>) -> Option<Self> {
        let template = Template::separated(fields(program, &names)?, separator, program.escapes()).ok()?;
        Some(Self { program, separator, names, template })
    }

    /// Reads a line that may be another directive. The lines behind it lack what the first ones had and they have not.
    pub(super) fn follow(&self, line: &[u8]) -> Directive {
        let other = match names(line) {
            _ if !line.starts_with(FIELDS) => return Directive::Same,
            Some(names) if names == self.names => return Directive::Same,
            names => names.and_then(|names| Self::behind(self.program, self.separator, names)),
        };
        let Some(mut other) = other else { return Directive::Unusable };
        other.template.go_on(&self.template);
        Directive::Other(Box::new(other))
    }

    /// The unit of durations, and the reason.
    pub(super) fn unit(&self) -> Option<(&'static str, &'static str)> {
        let unit = match self.program {
            Program::Iis => ("milliseconds", "as IIS writes it"),
            Program::CloudFront => return None,
            Program::Other => ("seconds", "as the definition of the format says"),
        };
        self.names.iter().any(|name| name == TIME_TAKEN).then_some(unit)
    }
}

/// The name of the duration.
pub(super) const TIME_TAKEN: &str = "time-taken";

fn names(directive: &[u8]) -> Option<Vec<String>> {
    let names = std::str::from_utf8(directive.strip_prefix(FIELDS)?).ok()?;
    Some(names.split_ascii_whitespace().map(str::to_ascii_lowercase).collect())
}

/// The values of a line; `None` if they lack the time.
fn fields(program: Program, names: &[String]) -> Option<Vec<Field>> {
    let date = names.windows(2).position(|pair| pair == ["date", "time"])?;
    let field = |(place, name): (usize, &String)| {
        Some(match &**name {
            "date" if place == date => Field::End,
            "time" if place == date + 1 => return None,
            "c-ip" => Field::Client,
            "cs-method" => Field::Method,
            // IIS has decoded it.
            "cs-uri-stem" if program == Program::Iis => Field::DecodedPath,
            "cs-uri-stem" => Field::Path,
            "cs-uri-query" => Field::Query,
            // That of CloudFront itself.
            "cs(host)" if program == Program::CloudFront => Field::Ignored,
            "cs-host" | "cs(host)" | "x-host-header" => Field::Host,
            "sc-status" => Field::Status,
            TIME_TAKEN => Field::Took(if program == Program::Iis { 1_000 } else { 1_000_000 }),
            "x-forwarded-for" => Field::Header("x-forwarded-for".into()),
            name => match name.strip_prefix("cs(").and_then(|name| name.strip_suffix(')')) {
                Some(header) => Field::Header(header.into()),
                None => Field::Ignored,
            },
        })
    };
    Some(names.iter().enumerate().filter_map(field).collect())
}

/// Returns true for a line that is about the log.
pub(super) fn is_directive(line: &[u8]) -> bool {
    line.starts_with(b"#")
}
