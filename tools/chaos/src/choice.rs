//! The user's choice of faults.

use anyring_chaos_plan::{Class, Fault, Faults};

/// Parses a list of faults: names, `all`, or a class (`ordinary`, `failure`, `strict`); `!` in front excludes. A
/// list that begins with `!` excludes from the ordinary faults.
///
/// # Errors
/// Returns the unknown name.
pub fn choose(list: &str) -> Result<Faults, String> {
    let words: Vec<&str> = list.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    let starts_without = words.first().is_some_and(|word| word.starts_with('!'));
    let mut chosen = if starts_without { Faults::ORDINARY } else { Faults::NONE };
    for word in words {
        let (leaves_out, name) = word.strip_prefix('!').map_or((false, word), |name| (true, name));
        let meant =
            named(name).ok_or_else(|| format!("there is no fault \"{name}\"; known are {}", known()))?;
        chosen = if leaves_out { meant.iter().fold(chosen, Faults::without) } else { chosen.or(meant) };
    }
    if chosen == Faults::NONE {
        return Err(format!("no fault is chosen; known are {}", known()));
    }
    Ok(chosen)
}

fn named(name: &str) -> Option<Faults> {
    let class = |class| Some(Faults::of_class(class));
    match name {
        "all" => Some(Faults::ALL),
        "ordinary" => class(Class::Ordinary),
        "failure" => class(Class::Failure),
        "strict" => class(Class::Strict),
        _ => Fault::named(name).filter(|&fault| Faults::ALL.has(fault)).map(|fault| Faults::NONE.with(fault)),
    }
}

/// Returns the names that [`choose`] knows, in one line.
pub fn known() -> String {
    let names = Faults::ALL.iter().map(Fault::name);
    ["all", "ordinary", "failure", "strict"].into_iter().chain(names).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> Vec<&'static str> {
        choose(list).unwrap().iter().map(Fault::name).collect()
    }

    #[test]
    fn lists_are_names_classes_and_what_is_left_out() {
        assert_eq!(names("eintr, short"), ["short", "eintr"]);
        assert_eq!(choose("all"), Ok(Faults::ALL));
        assert_eq!(choose("ordinary"), Ok(Faults::ORDINARY));
        assert_eq!(choose("!short"), Ok(Faults::ORDINARY.without(Fault::Short)));
        assert_eq!(names("strict,!buffer-rubbish"), ["sqe-rubbish"]);
        assert_eq!(choose("ordinary,failure,strict"), Ok(Faults::ALL));
    }

    #[test]
    fn what_is_unknown_is_named_with_what_is_known() {
        let error = choose("short,shrot").unwrap_err();
        assert!(error.contains("\"shrot\"") && error.contains("short, eintr"), "{error}");
        assert!(choose("short,!short").is_err() && choose("").is_err() && choose("!nothing").is_err());
    }
}
