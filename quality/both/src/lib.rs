//! `#[both]`: a test whose answer is the same on the user engine and on the kernel's io_uring.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Makes a function a test, which `common::both` runs. The function takes the engine; with arguments, `#[both(8, IORING_SETUP_SQPOLL)]`,
/// it takes a ring that `Ring::new` makes of them.
#[proc_macro_attribute]
pub fn both(ring: TokenStream, test: TokenStream) -> TokenStream {
    let mut tokens = test.clone().into_iter().skip_while(|token| token.to_string() != "fn");
    let name = tokens.nth(1).expect("a function");
    let body = match ring.is_empty() {
        true => name.to_string(),
        false => format!("|engine| {name}(crate::common::Ring::new(engine, {ring}))"),
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
