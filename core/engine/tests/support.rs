//! The page that says what is supported is that of the tables.

#[test]
fn the_page_is_current() {
    let page = include_str!("../../../docs/support.md");
    assert!(page == anyring_engine::support::page(), "write it anew: anyring support > docs/support.md");
}
