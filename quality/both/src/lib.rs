//! Attributes of tests that another function runs: on the user engine and on the kernel's io_uring, under a model checker, in a child.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Turns a function into a test that `common::both` runs. The function takes the engine, or a `Ring`, which `common::ring` creates from the
/// engine and the arguments of the attribute, if there are any: `#[both(8, IORING_SETUP_SQPOLL)]`.
#[proc_macro_attribute]
pub fn both(arguments: TokenStream, test: TokenStream) -> TokenStream {
    let mut tokens = test.clone().into_iter().skip_while(|token| token.to_string() != "fn").skip(1);
    let name = tokens.next().expect("a function");
    let takes_ring = match tokens.next() {
        Some(TokenTree::Group(taken)) => taken.stream().into_iter().any(|token| token.to_string() == "Ring"),
        _ => panic!("a function without generic parameters"),
    };
    let body = match takes_ring {
        true => format!("|engine| {name}(crate::common::ring(engine, {arguments}))"),
        false => name.to_string(),
    };
    test_that(test, name, parse(&format!("crate::common::both({body});")))
}

/// Turns a function into a test that passes it to another function, after the arguments given here: `#[by(each(8))]`.
#[proc_macro_attribute]
pub fn by(runner: TokenStream, test: TokenStream) -> TokenStream {
    let mut tokens = test.clone().into_iter().skip_while(|token| token.to_string() != "fn").skip(1);
    let name = tokens.next().expect("a function");
    let mut runner: Vec<TokenTree> = runner.into_iter().collect();
    let arguments = match runner.last() {
        Some(TokenTree::Group(arguments)) => Some(arguments.stream()),
        _ => None,
    };
    runner.truncate(runner.len() - usize::from(arguments.is_some()));
    let arguments = match arguments {
        Some(arguments) => TokenStream::from_iter([arguments, parse(","), name.clone().into()]),
        None => name.clone().into(),
    };
    runner.push(Group::new(Delimiter::Parenthesis, arguments).into());
    test_that(test, name, TokenStream::from_iter([TokenStream::from_iter(runner), parse(";")]))
}

/// Returns a test that makes this call. The function is an item of the test, whose name is that of the function.
fn test_that(function: TokenStream, name: TokenTree, call: TokenStream) -> TokenStream {
    let body = Group::new(Delimiter::Brace, TokenStream::from_iter([function, call]));
    TokenStream::from_iter([parse("#[test] fn"), name.into(), parse("()"), TokenTree::from(body).into()])
}

fn parse(text: &str) -> TokenStream {
    text.parse().expect("tokens")
}
