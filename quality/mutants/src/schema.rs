//! A source file with all its mutants: each mutated place calls `crate::mutant::is(NUMBER)` to choose the code that runs.
//!
//! Markers surround the inserted code, `/*<m12*/` to `/*m12>*/` for a mutant and `/*<s3*/` to `/*s3>*/` for a place; they
//! identify the cause of a compiler error.

use std::collections::HashMap;
use std::fmt::Write;
use std::ops::Range;

use anyhow::{Context, Result};
use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, UnOp};

use crate::list::Mutant;

/// A place in the source, with the mutants that change it.
struct Site {
    /// The text that is replaced; empty if text is inserted.
    range: Range<usize>,
    kind: Kind,
    mutants: Vec<(usize, String)>,
}

enum Kind {
    /// The beginning of a function's body.
    Body,
    /// An operator with two operands.
    Binary { left: Range<usize>, right: Range<usize>, operator: Range<usize>, compares: bool },
    /// `+=` and similar operators.
    Assign { left: Range<usize>, right: Range<usize>, operator: Range<usize> },
    /// `&&` or `||`.
    Logic { left: Range<usize>, right: Range<usize>, and: bool },
    /// `!` or `-`.
    Unary { operand: Range<usize>, operator: Range<usize> },
    /// After the pattern of an arm without a guard.
    Arm,
    /// The guard of an arm.
    Guard,
    /// A field of a struct expression with a base: its value is removed, so that the base's value is used.
    Field { name: String, value: Range<usize>, shorthand: bool, of: Range<usize>, base: Range<usize> },
}

/// The result of mutating a file.
pub struct Mutated {
    /// The file with its mutants.
    pub text: String,
    /// Mutants that this method cannot express, mostly in constants.
    pub left: Vec<usize>,
    /// Mutants that cannot compile.
    pub unviable: Vec<usize>,
    /// The mutants of each place, by its number in the markers.
    pub sites: Vec<Vec<usize>>,
}

/// Inserts the mutants of a file into its source.
pub fn mutate(source: &str, mutants: &[&Mutant]) -> Result<Mutated> {
    let file = syn::parse_file(source).context("the source parses")?;
    let mut wanted: HashMap<_, Vec<(usize, String)>> = HashMap::new();
    for mutant in mutants {
        let key = (mutant.line, mutant.column, mutant.genre.clone());
        wanted.entry(key).or_default().push((mutant.number, mutant.replacement.clone()));
    }
    let mut finder =
        Finder { wanted, sites: Vec::new(), left: Vec::new(), unviable: Vec::new(), constant: false };
    finder.visit_file(&file);
    let mut left = finder.left;
    left.extend(finder.wanted.into_values().flatten().map(|(number, _)| number));
    let mut sites = finder.sites;
    // Places with equal ranges were found from the outside in; a stable sort keeps that order.
    sites.sort_by_key(|site| (site.range.start, std::cmp::Reverse(site.range.end)));
    let mut text = String::new();
    Writer { source, sites: &sites }.write(0..source.len(), 0, &mut text);
    let sites = sites.iter().map(|site| site.mutants.iter().map(|(number, _)| *number).collect()).collect();
    Ok(Mutated { text, left, unviable: finder.unviable, sites })
}

struct Finder {
    wanted: HashMap<(usize, usize, String), Vec<(usize, String)>>,
    sites: Vec<Site>,
    left: Vec<usize>,
    unviable: Vec<usize>,
    /// True if the compiler evaluates the visited expression.
    constant: bool,
}

impl Finder {
    fn take(&mut self, at: Span, genre: &str) -> Option<Vec<(usize, String)>> {
        let start = at.start();
        let mutants = self.wanted.remove(&(start.line, start.column + 1, genre.to_owned()))?;
        if self.constant {
            self.left.extend(mutants.into_iter().map(|(number, _)| number));
            return None;
        }
        Some(mutants)
    }

    fn add(&mut self, range: Range<usize>, kind: Kind, mutants: Vec<(usize, String)>) {
        self.sites.push(Site { range, kind, mutants });
    }

    fn constant(&mut self, constant: bool, visit: impl FnOnce(&mut Finder)) {
        let before = std::mem::replace(&mut self.constant, constant);
        visit(self);
        self.constant = before;
    }

    fn body(&mut self, block: &syn::Block, constant: bool) {
        let Some(first) = block.stmts.first() else { return };
        self.constant(constant, |finder| {
            if let Some(mutants) = finder.take(first.span(), "FnValue") {
                let at = block.brace_token.span.open().byte_range().end;
                finder.add(at..at, Kind::Body, mutants);
            }
        });
    }
}

fn bytes(spanned: &impl Spanned) -> Range<usize> {
    spanned.span().byte_range()
}

/// True if one of the conditions joined by `&&` is a `let`.
fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let constant = item.sig.constness.is_some();
        self.body(&item.block, constant);
        self.constant(constant, |finder| visit::visit_item_fn(finder, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        let constant = item.sig.constness.is_some();
        self.body(&item.block, constant);
        self.constant(constant, |finder| visit::visit_impl_item_fn(finder, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.body(block, false);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constant(true, |finder| visit::visit_item_const(finder, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.constant(true, |finder| visit::visit_impl_item_const(finder, item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.constant(true, |finder| visit::visit_item_static(finder, item));
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.constant(true, |finder| visit::visit_item_enum(finder, item));
    }

    fn visit_type(&mut self, kind: &'ast syn::Type) {
        self.constant(true, |finder| visit::visit_type(finder, kind));
    }

    fn visit_expr_const(&mut self, block: &'ast syn::ExprConst) {
        self.constant(true, |finder| visit::visit_expr_const(finder, block));
    }

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
        self.constant(true, |finder| finder.visit_expr(&repeat.len));
    }

    fn visit_expr_closure(&mut self, closure: &'ast syn::ExprClosure) {
        self.constant(false, |finder| visit::visit_expr_closure(finder, closure));
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        if let Some(mutants) = self.take(binary.op.span(), "BinaryOperator") {
            let (left, right) = (bytes(&binary.left), bytes(&binary.right));
            let operator = bytes(&binary.op);
            let kind = match binary.op {
                BinOp::And(_) | BinOp::Or(_) => {
                    Kind::Logic { left, right, and: matches!(binary.op, BinOp::And(_)) }
                }
                BinOp::Eq(_) | BinOp::Ne(_) | BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_) => {
                    Kind::Binary { left, right, operator, compares: true }
                }
                BinOp::Add(_)
                | BinOp::Sub(_)
                | BinOp::Mul(_)
                | BinOp::Div(_)
                | BinOp::Rem(_)
                | BinOp::BitXor(_)
                | BinOp::BitAnd(_)
                | BinOp::BitOr(_)
                | BinOp::Shl(_)
                | BinOp::Shr(_) => Kind::Binary { left, right, operator, compares: false },
                _ => Kind::Assign { left, right, operator },
            };
            if has_let(&binary.left) || has_let(&binary.right) {
                self.unviable.extend(mutants.into_iter().map(|(number, _)| number));
            } else {
                self.add(bytes(binary), kind, mutants);
            }
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        if matches!(unary.op, UnOp::Not(_) | UnOp::Neg(_))
            && let Some(mutants) = self.take(unary.op.span(), "UnaryOperator")
        {
            let kind = Kind::Unary { operand: bytes(&unary.expr), operator: bytes(&unary.op) };
            self.add(bytes(unary), kind, mutants);
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Some((_, guard)) = &arm.guard {
            if let Some(mutants) = self.take(guard.span(), "MatchArmGuard") {
                self.add(bytes(guard), Kind::Guard, mutants);
            }
        } else if let Some(mutants) = self.take(arm.span(), "MatchArm") {
            let at = bytes(&arm.pat).end;
            self.add(at..at, Kind::Arm, mutants);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_struct(&mut self, structure: &'ast syn::ExprStruct) {
        for field in &structure.fields {
            if let Some(base) = &structure.rest
                && let syn::Member::Named(name) = &field.member
                && let Some(mutants) = self.take(field.span(), "StructField")
            {
                let kind = Kind::Field {
                    name: name.to_string(),
                    value: bytes(&field.expr),
                    shorthand: field.colon_token.is_none(),
                    of: bytes(&structure.path),
                    base: bytes(base.as_ref()),
                };
                self.add(bytes(field), kind, mutants);
            }
        }
        visit::visit_expr_struct(self, structure);
    }
}

struct Writer<'a> {
    source: &'a str,
    sites: &'a [Site],
}

impl Writer<'_> {
    /// Writes the text of a range, with its places from number `from` on.
    fn write(&self, range: Range<usize>, from: usize, text: &mut String) {
        let mut at = range.start;
        for (number, site) in self.sites.iter().enumerate().skip(from) {
            let inside = site.range.start >= at && site.range.end <= range.end;
            if !inside {
                continue;
            }
            text.push_str(&self.source[at..site.range.start]);
            at = site.range.end;
            write!(text, "/*<s{number}*/").unwrap();
            self.write_site(number, site, text);
            write!(text, "/*s{number}>*/").unwrap();
        }
        text.push_str(&self.source[at..range.end]);
    }

    fn part(&self, range: &Range<usize>, site: usize) -> String {
        let mut text = String::new();
        self.write(range.clone(), site + 1, &mut text);
        text
    }

    fn write_site(&self, number: usize, site: &Site, text: &mut String) {
        let part = |range: &Range<usize>| self.part(range, number);
        // Returns `if` with the code of each mutant, and `else` with the original.
        let choose = |alternative: &dyn Fn(&str) -> String, original: String| {
            let mut chosen = String::new();
            for (mutant, replacement) in &site.mutants {
                let alternative = alternative(replacement);
                write!(
                    chosen,
                    "if crate::mutant::is({mutant}) {{ {} }} else ",
                    marked(*mutant, &alternative)
                )
                .unwrap();
            }
            format!("{chosen}{{ {original} }}")
        };
        let is = |which: usize| format!("crate::mutant::is({})", site.mutants[which].0);
        let written = match &site.kind {
            Kind::Body => {
                let each = site.mutants.iter().map(|(mutant, replacement)| {
                    format!(
                        "if {} {{ {} }}",
                        format_args!("crate::mutant::is({mutant})"),
                        marked(*mutant, &format!("return {replacement};"))
                    )
                });
                each.collect::<Vec<_>>().join(" ")
            }
            Kind::Binary { left, right, operator, compares } => {
                let (borrow, value) = if *compares { ("&", "*") } else { ("", "") };
                let with = |operator: &str| format!("{value}l {operator} {value}r");
                let chosen = choose(&with, with(&self.source[operator.clone()]));
                let (left, right) = (part(left), part(right));
                format!("(match ({borrow}({left}), {borrow}({right})) {{ (l, r) => {chosen} }})")
            }
            Kind::Assign { left, right, operator } => {
                let (left, right) = (part(left), part(right));
                let with = |operator: &str| format!("{left} {operator} value_");
                format!("{{ let value_ = {right}; {} }}", choose(&with, with(&self.source[operator.clone()])))
            }
            // The left value alone decides if it is false for `&&`, or true for `||`; a mutant inverts that.
            Kind::Logic { left, right, and } => {
                let decides = if *and { "==" } else { "!=" };
                let (left, right) = (part(left), part(right));
                let is = is(0);
                format!(
                    "({{ let decided_: bool = {left}; if decided_ {decides} {is} {{ decided_ }} else {{ {right} }} }})"
                )
            }
            Kind::Unary { operand, operator } => {
                let chosen = choose(&|_| "v".to_owned(), format!("{}v", &self.source[operator.clone()]));
                format!("(match ({}) {{ v => {chosen} }})", part(operand))
            }
            Kind::Arm => format!(" if !{}", is(0)),
            Kind::Guard => {
                let of = |replacement: &str| site.mutants.iter().find(|(_, text)| text == replacement);
                let number = |replacement| of(replacement).map_or(0, |(number, _)| *number);
                format!(
                    "(crate::mutant::is({}) || (!crate::mutant::is({}) && ({})))",
                    number("true"),
                    number("false"),
                    part(&site.range)
                )
            }
            Kind::Field { name, value, shorthand, of, base } => {
                let value = if *shorthand { name.clone() } else { part(value) };
                let base =
                    format!("({} {{ ..{} }}).{name}", &self.source[of.clone()], &self.source[base.clone()]);
                format!("{name}: {}", choose(&|_| base.clone(), value))
            }
        };
        text.push_str(&written);
    }
}

fn marked(mutant: usize, text: &str) -> String {
    format!("/*<m{mutant}*/ {text}/*m{mutant}>*/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(number: usize, genre: &str, (line, column): (usize, usize), replacement: &str) -> Mutant {
        Mutant {
            number,
            name: String::new(),
            file: String::new(),
            function: String::new(),
            genre: genre.to_owned(),
            replacement: replacement.to_owned(),
            line,
            column,
        }
    }

    /// Returns the text without the markers.
    fn plain(text: &str) -> String {
        let mut parts = text.split("/*");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| text + part.split_once("*/").map_or(part, |(_, behind)| behind))
    }

    #[test]
    fn a_place_chooses_between_its_mutants() {
        let source = "fn f(a: u32) -> bool { a < 1 }\n";
        let mutants = [
            mutant(1, "FnValue", (1, 24), "true"),
            mutant(2, "BinaryOperator", (1, 26), "=="),
            mutant(3, "BinaryOperator", (1, 26), ">"),
        ];
        let mutated = mutate(source, &mutants.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(
            plain(&mutated.text),
            "fn f(a: u32) -> bool {if crate::mutant::is(1) {  return true; } (match (&(a), &(1)) { (l, r) => \
             if crate::mutant::is(2) {  *l == *r } else if crate::mutant::is(3) {  *l > *r } else { *l < *r } }) }\n"
        );
        assert_eq!(mutated.sites, [vec![1], vec![2, 3]]);
    }

    #[test]
    fn constants_need_a_build_each_and_chains_of_let_take_no_other_operator() {
        let source = "const A: u32 = 1 | 2;\nfn f(a: Option<bool>) { if let Some(b) = a && b { g() } }\n";
        let mutants = [mutant(1, "BinaryOperator", (1, 18), "^"), mutant(2, "BinaryOperator", (2, 44), "||")];
        let mutated = mutate(source, &mutants.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!((mutated.text.as_str(), mutated.left, mutated.unviable), (source, vec![1], vec![2]));
    }

    #[test]
    fn logic_keeps_what_is_evaluated() {
        let source = "fn f() -> bool { a() && b() || c() }";
        let mutants =
            [mutant(1, "BinaryOperator", (1, 22), "||"), mutant(2, "BinaryOperator", (1, 29), "&&")];
        let mutated = mutate(source, &mutants.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(
            plain(&mutated.text),
            "fn f() -> bool { ({ let decided_: bool = ({ let decided_: bool = a(); if decided_ == crate::mutant::is(1) \
             { decided_ } else { b() } }); if decided_ != crate::mutant::is(2) { decided_ } else { c() } }) }"
        );
    }
}
