//! The middlewares and routers of dynamic files, resources of Kubernetes and labels.

use std::cell::Cell;
use std::path::Path;

use super::super::document::{Document, Origin};
use super::super::settings::{SettingState, scalar};
use super::super::tree::{at, items, list_at, text_at};
use super::is_about_limits;
use crate::config::foreign::{self, Findings, Node, ReadResult, Value};
use crate::config::{Place, Source};

/// A setting by its path in lower case: labels spell it in any case.
pub(super) struct Setting {
    pub(super) path: String,
    pub(super) value: String,
    pub(super) origin: Origin,
    pub(super) state: Cell<SettingState>,
}

/// The source of a middleware or a router. Each has names of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Provider {
    File,
    Kubernetes,
    Labels,
}

/// A middleware or a router, with its settings.
pub(super) struct Object {
    pub(super) name: String,
    pub(super) provider: Provider,
    pub(super) settings: Vec<Setting>,
}

#[derive(Default)]
pub(super) struct Objects {
    pub(super) middlewares: Vec<Object>,
    pub(super) routers: Vec<Object>,
}

impl Provider {
    /// The provider behind the `@` of a name.
    pub(super) fn of(name: &str) -> Self {
        match name {
            "file" => Self::File,
            _ if name.starts_with("kubernetes") => Self::Kubernetes,
            _ => Self::Labels,
        }
    }
}

impl Object {
    pub(super) fn get(&self, path: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.path == path)
    }

    pub(super) fn has_redis(&self, kind: &str) -> bool {
        self.settings.iter().any(|setting| setting.path.starts_with(&format!("{kind}.redis")))
    }
}

pub(super) fn read(
    source: &Source,
    findings: &Findings,
    objects: &mut Objects,
    document: &mut Document,
) -> ReadResult<()> {
    if Path::new(&source.name).extension().is_some_and(|extension| extension == "toml") {
        let root = foreign::read_toml(&source.text, findings)?;
        objects.add_file(&source.name, &root);
        objects.tell_of_others(&source.name, &[root], document);
        return Ok(());
    }
    let is_template = |line: &str| line.trim_start().starts_with("{{") || line.contains(": {{");
    let template = (1..).zip(source.text.lines()).find(|(_, line)| is_template(line));
    if let Some((line, _)) = template.filter(|_| !source.text.contains("apiVersion")) {
        return Err(findings.error(Place { line, ..Place::default() }, "the file is a template", "render it first"));
    }
    let roots = foreign::documents(&source.text, findings)?;
    for root in &roots {
        for object in items(root) {
            objects.add_resource(&source.name, object);
        }
        objects.add_file(&source.name, root);
        for (key, service) in entries(root, &["services"]) {
            for labels in [&["labels"][..], &["deploy", "labels"]] {
                objects.add_labels(&source.name, &key, at(service, labels));
            }
        }
    }
    objects.tell_of_others(&source.name, &roots, document);
    Ok(())
}

/// The entries of a map at a path, ignoring case.
fn entries<'n>(node: &'n Node, path: &[&str]) -> Vec<(String, &'n Node)> {
    let Value::Map(all) = &node.value else { return Vec::new() };
    match path.split_first() {
        None => all.iter().map(|(key, value)| (key.text.clone(), value)).collect(),
        Some((first, rest)) => all
            .iter()
            .filter(|(key, _)| key.text.eq_ignore_ascii_case(first))
            .flat_map(|(_, value)| entries(value, rest))
            .collect(),
    }
}

/// The places of limits in a value, wherever they stand.
fn limits_in(node: &Node, found: &mut Vec<Place>) {
    match &node.value {
        Value::Map(entries) => {
            for (key, value) in entries {
                if is_about_limits(&key.text.to_ascii_lowercase()) {
                    found.push(key.place);
                }
                limits_in(value, found);
            }
        }
        Value::List(items) => items.iter().for_each(|item| limits_in(item, found)),
        Value::Scalar { .. } => {}
    }
}

/// The middlewares that a resource names, joined by commas.
fn named_in(list: &[Node], namespace: &str) -> String {
    let name = |named: &Node| {
        let namespace = text_at(named, &["namespace"]).unwrap_or(namespace);
        Some(format!("{namespace}-{}", text_at(named, &["name"])?))
    };
    list.iter().filter_map(name).collect::<Vec<_>>().join(",")
}

/// The settings of a router in a resource, with their nodes.
fn of_route(file: &str, settings: Vec<(&str, String, &Node)>) -> Vec<Setting> {
    let setting = |(path, value, node): (&str, String, &Node)| Setting {
        path: path.to_owned(),
        value,
        origin: Origin::of(file, node.place),
        state: Cell::default(),
    };
    settings.into_iter().map(setting).collect()
}

/// Settings of a value: maps as paths, lists joined by commas.
fn flatten(file: &str, path: &str, node: &Node, settings: &mut Vec<Setting>) {
    let mut add = |value: String| {
        settings.push(Setting {
            path: path.to_ascii_lowercase(),
            value,
            origin: Origin::of(file, node.place),
            state: Cell::default(),
        });
    };
    match &node.value {
        Value::Map(entries) if entries.is_empty() => add(String::new()),
        Value::Map(entries) => {
            for (key, value) in entries {
                let inner = if path.is_empty() { key.text.clone() } else { format!("{path}.{}", key.text) };
                flatten(file, &inner, value, settings);
            }
        }
        Value::List(values) => add(values.iter().filter_map(scalar).collect::<Vec<_>>().join(",")),
        Value::Scalar { text, .. } => add(text.clone()),
    }
}

impl Objects {
    /// Tells of limits where Traefik reads none, such as the values of a chart.
    fn tell_of_others(&self, file: &str, roots: &[Node], document: &mut Document) {
        let mut found = Vec::new();
        for root in roots {
            limits_in(root, &mut found);
        }
        let name = Origin::of(file, Place::default()).file;
        let lines: Vec<u32> = self
            .middlewares
            .iter()
            .flat_map(|object| &object.settings)
            .filter(|setting| setting.origin.file == name)
            .map(|setting| setting.origin.line)
            .collect();
        // A limit without settings has its own line, others the lines below.
        for place in found.iter().filter(|place| !lines.iter().any(|line| (place.line..place.line + 4).contains(line)))
        {
            document.count_settings(1, 0);
            document.unused(
                Origin::of(file, *place)
                    .note("Traefik reads no limit here: it is in no middleware of a dynamic file or resource."),
            );
        }
    }

    fn add(objects: &mut Vec<Object>, name: &str, provider: Provider, file: &str, node: &Node) {
        let mut settings = Vec::new();
        flatten(file, "", node, &mut settings);
        objects.push(Object { name: name.to_owned(), provider, settings });
    }

    /// A dynamic file.
    fn add_file(&mut self, file: &str, root: &Node) {
        for prefix in [&["http"][..], &[]] {
            let path = |last| [prefix, &[last][..]].concat();
            for (name, node) in entries(root, &path("middlewares")) {
                Self::add(&mut self.middlewares, &name, Provider::File, file, node);
            }
            for (name, node) in entries(root, &path("routers")) {
                Self::add(&mut self.routers, &name, Provider::File, file, node);
            }
        }
    }

    /// A resource of Kubernetes.
    fn add_resource(&mut self, file: &str, node: &Node) {
        let meta = |key| text_at(node, &["metadata", key]).unwrap_or("default");
        let (namespace, name) = (meta("namespace"), meta("name"));
        match text_at(node, &["kind"]) {
            Some("Middleware") => {
                if let Some(spec) = at(node, &["spec"]) {
                    let named = named_in(list_at(spec, &["chain", "middlewares"]), namespace);
                    Self::add(&mut self.middlewares, &format!("{namespace}-{name}"), Provider::Kubernetes, file, spec);
                    let chain = self.middlewares.last_mut().and_then(|object| {
                        object.settings.iter_mut().find(|setting| setting.path == "chain.middlewares")
                    });
                    if let Some(chain) = chain {
                        chain.value = named;
                    }
                }
            }
            Some("IngressRoute") => {
                for (place, route) in list_at(node, &["spec", "routes"]).iter().enumerate() {
                    let points = list_at(node, &["spec", "entryPoints"]).iter().filter_map(scalar);
                    let mut settings = vec![
                        ("rule", text_at(route, &["match"]).unwrap_or_default().to_owned(), route),
                        ("middlewares", named_in(list_at(route, &["middlewares"]), namespace), route),
                        ("entrypoints", points.collect::<Vec<_>>().join(","), route),
                    ];
                    settings.extend(at(node, &["spec", "tls"]).map(|tls| ("tls", String::new(), tls)));
                    settings
                        .extend(text_at(route, &["priority"]).map(|priority| ("priority", priority.to_owned(), route)));
                    let name = if place == 0 { name.to_owned() } else { format!("{name}-{place}") };
                    self.routers.push(Object {
                        name,
                        provider: Provider::Kubernetes,
                        settings: of_route(file, settings),
                    });
                }
            }
            // A router without a rule that Weir reads.
            Some("HTTPRoute") => {
                let filters = list_at(node, &["spec", "rules"]).iter().flat_map(|rule| list_at(rule, &["filters"]));
                let named = filters.filter_map(|filter| text_at(filter, &["extensionRef", "name"]));
                let named = named.map(|named| format!("{namespace}-{named}")).collect::<Vec<_>>().join(",");
                let settings = of_route(file, vec![("middlewares", named, node)]);
                self.routers.push(Object { name: name.to_owned(), provider: Provider::Kubernetes, settings });
            }
            Some("Ingress") => self.add_ingress(file, name, node),
            _ => {}
        }
    }

    /// An Ingress, whose requests Traefik takes without middlewares, too.
    fn add_ingress(&mut self, file: &str, name: &str, node: &Node) {
        let annotation = |name: &str| {
            let name = format!("traefik.ingress.kubernetes.io/router.{name}");
            text_at(node, &["metadata", "annotations", &name])
        };
        let class = text_at(node, &["spec", "ingressClassName"])
            .or(text_at(node, &["metadata", "annotations", "kubernetes.io/ingress.class"]));
        let is_other = annotation("middlewares").is_none() && class.is_some_and(|class| !class.contains("traefik"));
        if let Some(backend) = at(node, &["spec", "defaultBackend"]).filter(|_| !is_other) {
            let mut settings =
                vec![("rule", "PathPrefix(`/`)".to_owned(), backend), ("priority", "1".to_owned(), backend)];
            settings.extend(annotation("middlewares").map(|value| ("middlewares", value.to_owned(), backend)));
            let settings = of_route(file, settings);
            self.routers.push(Object { provider: Provider::Kubernetes, name: name.to_owned(), settings });
        }
        for rule in list_at(node, &["spec", "rules"]).iter().filter(|_| !is_other) {
            let host = text_at(rule, &["host"]).map(|host| format!("Host(`{host}`) && ")).unwrap_or_default();
            for path in list_at(rule, &["http", "paths"]) {
                let matcher = match text_at(path, &["pathType"]) {
                    Some("Exact") => "Path",
                    Some("Prefix") => "PathPrefix",
                    _ => annotation("pathmatcher").unwrap_or("PathPrefix"),
                };
                let value = text_at(path, &["path"]).unwrap_or("/");
                let mut settings = vec![("rule", format!("{host}{matcher}(`{value}`)"), path)];
                for name in ["middlewares", "entrypoints", "priority", "tls"] {
                    settings.extend(annotation(name).map(|value| (name, value.to_owned(), path)));
                }
                settings.extend(at(node, &["spec", "tls"]).map(|tls| ("tls", String::new(), tls)));
                self.routers.push(Object {
                    provider: Provider::Kubernetes,
                    name: format!("{name}-{}", value.trim_matches('/')).trim_end_matches('-').to_owned(),
                    settings: of_route(file, settings),
                });
            }
        }
    }

    /// The labels of a container.
    fn add_labels(&mut self, file: &str, service: &str, labels: Option<&Node>) {
        let mut all = Vec::new();
        match labels.map(|labels| &labels.value) {
            Some(Value::Map(entries)) => all.extend(
                entries.iter().filter_map(|(key, value)| Some((key.text.clone(), scalar(value)?.to_owned(), value))),
            ),
            Some(Value::List(items)) => all.extend(items.iter().filter_map(|item| {
                scalar(item)?.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned(), item))
            })),
            _ => {}
        }
        if all.iter().any(|(key, value, _)| key == "traefik.enable" && value == "false") {
            return;
        }
        for (key, value, node) in all {
            let origin = Origin::of(file, node.place);
            let rest = key.strip_prefix("traefik.").unwrap_or_default();
            let (kind, rest) = match rest.strip_prefix("http.").and_then(|rest| rest.split_once('.')) {
                Some((kind, rest)) => (kind.to_owned(), rest.to_owned()),
                // Version 1 had labels of its own.
                None if rest.to_ascii_lowercase().contains("ratelimit")
                    || rest.to_ascii_lowercase().contains("maxconn") =>
                {
                    ("middlewares".to_owned(), format!("{service}-v1.ratelimit.{rest}"))
                }
                None => continue,
            };
            let objects = match kind.as_str() {
                "middlewares" => &mut self.middlewares,
                "routers" => &mut self.routers,
                _ => continue,
            };
            let Some((name, path)) = rest.split_once('.') else { continue };
            let setting = Setting { path: path.to_ascii_lowercase(), value, origin, state: Cell::default() };
            let mut known = objects.iter_mut().filter(|object| object.provider == Provider::Labels);
            match known.find(|object| object.name == name) {
                Some(object) => object.settings.push(setting),
                None => {
                    objects.push(Object { name: name.to_owned(), provider: Provider::Labels, settings: vec![setting] });
                }
            }
        }
    }
}
