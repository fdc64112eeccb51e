//! The C programs in the documentation: each block is compiled and linked with the library, and complete programs are run.
//!
//! `<!-- compiled after: DECLARATIONS -->` precedes a block that is no complete program; `<!-- not compiled: WHY -->` precedes
//! a block that cannot be compiled.

mod support;

#[path = "../../../tools/cli/tests/docs/pages.rs"]
mod pages;

use pages::Block;
use std::fs;
use std::path::Path;
use std::process::Command;
use support::{By, command, libraries, root, run};

/// Returns the program of a block, and whether it is complete; `None` if the block is marked as not compiled.
fn program(block: &Block) -> Option<(String, bool)> {
    if block.text.contains("int main(") {
        return Some((block.text.clone(), true));
    }
    let mark =
        block.before.strip_prefix("<!-- ").and_then(|mark| mark.strip_suffix(" -->")).unwrap_or_default();
    if let Some(why) = mark.strip_prefix("not compiled: ") {
        assert!(!why.is_empty(), "{}", block.place());
        return None;
    }
    let Some(declarations) = mark.strip_prefix("compiled after: ") else {
        panic!("{}: no program, and no mark before it that says how it is compiled", block.place());
    };
    let (includes, body): (Vec<_>, Vec<_>) =
        block.text.lines().partition(|line| line.starts_with("#include"));
    let text = format!(
        "#include <anyring.h>\n#include <stdio.h>\n{}\nvoid block(void);\nvoid block(void) {{\n{declarations}\n{}\n}}\n\
         int main(void) {{ return 0; }}\n",
        includes.join("\n"),
        body.join("\n")
    );
    Some((text, false))
}

#[test]
fn programs_of_the_documentation_work() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("docs-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let mut count = 0;
    for (number, block) in pages::blocks(&root()).iter().filter(|block| block.kind == "c").enumerate() {
        let Some((text, runs)) = program(block) else { continue };
        let source = directory.join(format!("{number}.c"));
        let binary = directory.join(number.to_string());
        fs::write(&source, text).unwrap();
        let mut compiler = Command::new("cc");
        // As compilers of Debian and Ubuntu link: a library of which only weak symbols are used would be dropped.
        compiler.args(["-O1", "-Wall", "-Werror", "-Wl,--as-needed", "-o"]).arg(&binary);
        compiler.arg("-I").arg(root().join("frontends/liburing/include")).arg(&source);
        compiler.arg("-L").arg(libraries()).arg("-l:liburing.so.2");
        println!("{}", block.place());
        run(&mut compiler);
        if runs {
            run(&mut command(&binary, &[], By::Denied));
        }
        count += 1;
    }
    fs::remove_dir_all(&directory).unwrap();
    assert!(count >= 3, "{count}");
}
