//! Parses a crate's sources into its modules, the paths that they name and the sizes of their files and functions.

use std::collections::{BTreeMap, HashMap, HashSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, Meta, Token, UseTree, Visibility};

/// A crate's files, by their paths below `src/`.
pub(super) type Files = BTreeMap<String, String>;

/// An index into [`Crate::modules`].
pub(super) type ModuleId = usize;

/// All modules reachable from `main.rs` and `lib.rs`, without the test code in them.
#[derive(Default)]
pub(super) struct Crate {
    pub(super) modules: Vec<Module>,
    /// Each path of a module once, where it comes first.
    pub(super) references: Vec<Reference>,
    known: HashSet<(ModuleId, Kind, Vec<String>)>,
    pub(super) functions: Vec<Function>,
    /// Each file's lines that are not test code. Files of test modules are absent.
    pub(super) lines: BTreeMap<String, usize>,
    pub(super) main: Option<ModuleId>,
    pub(super) lib: Option<ModuleId>,
}

pub(super) struct Module {
    pub(super) file: String,
    pub(super) parent: Option<ModuleId>,
    pub(super) children: HashMap<String, ModuleId>,
    /// The names that `use` brings into scope. Two paths have the same name if they are behind opposite `cfg`s.
    pub(super) names: HashMap<String, Vec<Vec<String>>>,
    pub(super) globs: Vec<Vec<String>>,
    pub(super) items: HashSet<String>,
}

/// A path in the code.
pub(super) struct Reference {
    pub(super) module: ModuleId,
    pub(super) line: usize,
    pub(super) path: Vec<String>,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Import,
    /// A `use` that is visible outside its module.
    ReExport,
    /// A path in an expression, a type, an attribute or a macro's arguments.
    Use,
}

pub(super) struct Function {
    pub(super) file: String,
    pub(super) name: String,
    pub(super) lines: usize,
}

impl Crate {
    /// Follows the `mod` declarations from `main.rs` and `lib.rs`.
    pub(super) fn parse(files: &Files) -> Self {
        let mut parsed = Self::default();
        parsed.main = parsed.load(files, "main.rs", None);
        parsed.lib = parsed.load(files, "lib.rs", None);
        parsed
    }

    fn load(&mut self, files: &Files, path: &str, parent: Option<ModuleId>) -> Option<ModuleId> {
        let text = files.get(path)?;
        let syntax = syn::parse_file(text).unwrap_or_else(|error| panic!("src/{path}: {error}"));
        let module = self.add(path, parent);
        let mut reader = Reader { parsed: self, files, module, test_lines: 0 };
        reader.visit_file(&syntax);
        let test_lines = reader.test_lines;
        self.lines.insert(path.to_owned(), text.lines().count() - test_lines);
        Some(module)
    }

    fn add(&mut self, file: &str, parent: Option<ModuleId>) -> ModuleId {
        self.modules.push(Module {
            file: file.to_owned(),
            parent,
            children: HashMap::new(),
            names: HashMap::new(),
            globs: Vec::new(),
            items: HashSet::new(),
        });
        self.modules.len() - 1
    }
}

/// Reads one file into the crate.
struct Reader<'a> {
    parsed: &'a mut Crate,
    files: &'a Files,
    module: ModuleId,
    test_lines: usize,
}

impl Reader<'_> {
    fn current(&mut self) -> &mut Module {
        &mut self.parsed.modules[self.module]
    }

    /// Returns whether a node with these attributes is test code, and counts its lines if so.
    fn skips(&mut self, attributes: &[Attribute], node: &impl Spanned) -> bool {
        let skips = attributes.iter().any(is_test_only);
        if skips {
            let span = node.span();
            self.test_lines += span.end().line + 1 - span.start().line;
        }
        skips
    }

    fn refer(&mut self, path: Vec<String>, line: usize, kind: Kind) {
        if self.parsed.known.insert((self.module, kind, path.clone())) {
            self.parsed.references.push(Reference { module: self.module, line, path, kind });
        }
    }

    fn import(&mut self, tree: &UseTree, prefix: &[String], kind: Kind) {
        let joined = |ident: &Ident| [prefix, &[text(ident)]].concat();
        match tree {
            UseTree::Path(path) => self.import(&path.tree, &joined(&path.ident), kind),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, prefix, kind)),
            UseTree::Name(name) if name.ident == "self" => {
                self.bind(prefix.last().cloned().unwrap_or_default(), prefix.to_vec(), tree, kind);
            }
            UseTree::Name(name) => self.bind(text(&name.ident), joined(&name.ident), tree, kind),
            UseTree::Rename(rename) if rename.ident == "self" => {
                self.bind(text(&rename.rename), prefix.to_vec(), tree, kind);
            }
            UseTree::Rename(rename) => self.bind(text(&rename.rename), joined(&rename.ident), tree, kind),
            UseTree::Glob(_) => {
                self.current().globs.push(prefix.to_vec());
                self.refer(prefix.to_vec(), tree.span().start().line, kind);
            }
        }
    }

    fn bind(&mut self, name: String, path: Vec<String>, tree: &UseTree, kind: Kind) {
        self.current().names.entry(name).or_default().push(path.clone());
        self.refer(path, tree.span().start().line, kind);
    }

    /// Macros' arguments are not parsed; every `a::b` in them counts as a path, and a name after `enum` or `struct` as an item.
    fn read_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let (mut line, mut punctuation) = (0, String::new());
        let mut declares = false;
        for token in tokens {
            let is_type_name = std::mem::take(&mut declares);
            match token {
                TokenTree::Ident(ident) => {
                    if punctuation != "::" || path.is_empty() {
                        self.finish(&mut path, line);
                        line = ident.span().start().line;
                    }
                    declares = ident == "enum" || ident == "struct";
                    if is_type_name {
                        self.current().items.insert(text(&ident));
                    }
                    let is_member = punctuation == ".";
                    if !is_member {
                        path.push(text(&ident));
                    }
                    punctuation.clear();
                }
                TokenTree::Punct(punct) => punctuation.push(punct.as_char()),
                TokenTree::Group(group) => {
                    self.finish(&mut path, line);
                    punctuation.clear();
                    self.read_tokens(group.stream());
                }
                TokenTree::Literal(_) => punctuation.clear(),
            }
        }
        self.finish(&mut path, line);
    }

    fn finish(&mut self, path: &mut Vec<String>, line: usize) {
        if !path.is_empty() {
            self.refer(std::mem::take(path), line, Kind::Use);
        }
    }

    fn measure(&mut self, signature: &syn::Signature, end: usize) {
        let lines = end + 1 - signature.span().start().line;
        let (file, name) = (self.parsed.modules[self.module].file.clone(), text(&signature.ident));
        self.parsed.functions.push(Function { file, name, lines });
    }

    fn declare(&mut self, item: &syn::ItemMod) {
        let name = text(&item.ident);
        let child = if let Some((_, items)) = &item.content {
            let file = self.current().file.clone();
            let child = self.parsed.add(&file, Some(self.module));
            let outer = std::mem::replace(&mut self.module, child);
            for item in items {
                self.visit_item(item);
            }
            self.module = outer;
            child
        } else {
            let folder = folder_of_children(&self.current().file);
            let candidates = [format!("{folder}{name}.rs"), format!("{folder}{name}/mod.rs")];
            let loaded = candidates.iter().find_map(|path| self.parsed.load(self.files, path, Some(self.module)));
            loaded.unwrap_or_else(|| panic!("none of {candidates:?} exists"))
        };
        self.current().children.insert(name, child);
    }
}

/// Skips test code, and records the names of the other items.
macro_rules! named_items {
    ($($method:ident: $node:ty),* $(,)?) => { $(
        fn $method(&mut self, node: &'ast $node) {
            if !self.skips(&node.attrs, node) {
                self.current().items.insert(text(&node.ident));
                visit::$method(self, node);
            }
        }
    )* };
}

/// Skips test code.
macro_rules! other_nodes {
    ($($method:ident: $node:ty),* $(,)?) => { $(
        fn $method(&mut self, node: &'ast $node) {
            if !self.skips(&node.attrs, node) {
                visit::$method(self, node);
            }
        }
    )* };
}

impl<'ast> Visit<'ast> for Reader<'_> {
    named_items! {
        visit_item_const: syn::ItemConst,
        visit_item_enum: syn::ItemEnum,
        visit_item_static: syn::ItemStatic,
        visit_item_struct: syn::ItemStruct,
        visit_item_trait: syn::ItemTrait,
        visit_item_type: syn::ItemType,
        visit_item_union: syn::ItemUnion,
    }

    other_nodes! {
        visit_item_impl: syn::ItemImpl,
        visit_impl_item_const: syn::ImplItemConst,
        visit_impl_item_type: syn::ImplItemType,
        visit_field: syn::Field,
        visit_field_value: syn::FieldValue,
        visit_variant: syn::Variant,
        visit_arm: syn::Arm,
        visit_local: syn::Local,
    }

    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        if !self.skips(&node.attrs, node) {
            self.current().items.insert(text(&node.sig.ident));
            self.measure(&node.sig, node.span().end().line);
            visit::visit_item_fn(self, node);
        }
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        if !self.skips(&node.attrs, node) {
            self.measure(&node.sig, node.span().end().line);
            visit::visit_impl_item_fn(self, node);
        }
    }

    fn visit_trait_item_fn(&mut self, node: &'ast syn::TraitItemFn) {
        if !self.skips(&node.attrs, node) {
            self.measure(&node.sig, node.span().end().line);
            visit::visit_trait_item_fn(self, node);
        }
    }

    fn visit_item_macro(&mut self, node: &'ast syn::ItemMacro) {
        if !self.skips(&node.attrs, node) {
            self.current().items.extend(node.ident.as_ref().map(text));
            visit::visit_item_macro(self, node);
        }
    }

    fn visit_item_mod(&mut self, node: &'ast syn::ItemMod) {
        if !self.skips(&node.attrs, node) {
            self.declare(node);
        }
    }

    fn visit_item_use(&mut self, node: &'ast syn::ItemUse) {
        if !self.skips(&node.attrs, node) {
            let kind = if matches!(node.vis, Visibility::Inherited) { Kind::Import } else { Kind::ReExport };
            self.import(&node.tree, &leading(node.leading_colon.is_some()), kind);
        }
    }

    fn visit_path(&mut self, node: &'ast syn::Path) {
        let mut path = leading(node.leading_colon.is_some());
        path.extend(node.segments.iter().map(|segment| text(&segment.ident)));
        self.refer(path, node.span().start().line, Kind::Use);
        visit::visit_path(self, node);
    }

    fn visit_macro(&mut self, node: &'ast syn::Macro) {
        visit::visit_macro(self, node);
        self.read_tokens(node.tokens.clone());
    }

    fn visit_attribute(&mut self, node: &'ast Attribute) {
        if let Meta::List(list) = &node.meta {
            self.read_tokens(list.tokens.clone());
        }
        visit::visit_attribute(self, node);
    }

    /// `pub(in crate::http)` imports nothing.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

/// The start of a path with or without a leading `::`.
fn leading(colons: bool) -> Vec<String> {
    if colons { vec!["::".to_owned()] } else { Vec::new() }
}

/// The identifier without `r#`.
fn text(ident: &Ident) -> String {
    ident.to_string().trim_start_matches("r#").to_owned()
}

/// The folder in which `mod` declarations of this file look: beside `mod.rs`, `lib.rs` and `main.rs`, and in `NAME/` for `NAME.rs`.
pub(super) fn folder_of_children(file: &str) -> String {
    let stem = file.trim_end_matches(".rs");
    let (folder, name) = stem.rsplit_once('/').map_or(("", stem), |(folder, name)| (folder, name));
    let parts = if matches!(name, "mod" | "lib" | "main") { vec![folder] } else { vec![folder, name] };
    parts.into_iter().filter(|part| !part.is_empty()).flat_map(|part| [part, "/"]).collect()
}

/// Returns whether code behind this attribute is compiled for tests and fuzzing only.
fn is_test_only(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.parse_args::<Meta>().is_ok_and(|predicate| without_tests(&predicate) == Some(false))
}

/// Evaluates a predicate of `cfg` for a build without tests; `None` if it depends on something else.
fn without_tests(predicate: &Meta) -> Option<bool> {
    let parts = || -> Vec<Option<bool>> {
        let list = predicate
            .require_list()
            .and_then(|list| list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated));
        list.iter().flatten().map(without_tests).collect()
    };
    let path = predicate.path();
    if path.is_ident("test") || path.is_ident("fuzzing") {
        Some(false)
    } else if path.is_ident("not") {
        parts().first().copied().flatten().map(|value| !value)
    } else if path.is_ident("all") {
        combine(&parts(), false)
    } else if path.is_ident("any") {
        combine(&parts(), true)
    } else {
        None
    }
}

/// `all` if one false value decides, `any` if one true value does.
fn combine(parts: &[Option<bool>], decisive: bool) -> Option<bool> {
    if parts.contains(&Some(decisive)) {
        Some(decisive)
    } else if parts.iter().all(|part| *part == Some(!decisive)) {
        Some(!decisive)
    } else {
        None
    }
}
