//! Writes files with `tokio::fs::write` through io_uring, and checks their contents.

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let path = std::env::temp_dir().join(format!("chaos-interrupted-{}", std::process::id()));
    let mut ended = Ok(());
    for turn in 0..20_u8 {
        let content = vec![turn; 10_000];
        ended = runtime.block_on(tokio::fs::write(&path, content.clone()));
        if ended.is_err() {
            break;
        }
        assert!(std::fs::read(&path).unwrap() == content, "the file of turn {turn} holds something else");
    }
    std::fs::remove_file(&path).unwrap();
    ended.expect("a file cannot be written");
}
