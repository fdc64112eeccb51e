//! `#[both]`: a test whose answer is the same on the user engine and on the kernel's io_uring.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Makes a function a test, which `common::both` runs. The function takes the engine, or a `Ring`, which `common::ring` makes of the engine
/// and of the arguments of the attribute, if there are any: `#[both(8, IORING_SETUP_SQPOLL)]`.
#[proc_macro_attribute]
pub fn both(arguments: TokenStream, test: TokenStream) -> TokenStream {
    let mut tokens = test.clone().into_iter().skip_while(|token| token.to_string() != "fn");
    let name = tokens.nth(1).expect("a function");
    let takes_ring = match tokens.next() {
        Some(TokenTree::Group(taken)) => taken.stream().into_iter().any(|token| token.to_string() == "Ring"),
        _ => panic!("a function without generic parameters"),
    };
    let body = match takes_ring {
        true => format!("|engine| {name}(crate::common::ring(engine, {arguments}))"),
        false => name.to_string(),
    };
    let call = format!("crate::common::both({body});");
    let parse = |text: &str| text.parse::<TokenStream>().expect("tokens");
    // The function is an item of the test that has its name.
    let items = TokenStream::from_iter([test, parse(&call)]);
    let items = TokenTree::from(Group::new(Delimiter::Brace, items));
    TokenStream::from_iter([
        parse("#[test] fn"),
        TokenStream::from(name),
        parse("()"),
        TokenStream::from(items),
    ])
}
