use super::*;

fn appended(name: &str, added: u64) -> Clause {
    let change =
        TableChange { verb: "append".into(), rows: Rows { added, ..Rows::default() }, ..TableChange::default() };
    Clause::of_change(&change, "shop", name)
}

fn text(clauses: Vec<Clause>) -> String {
    Summary::of(clauses).as_str().to_string()
}

#[test]
fn few_objects_are_listed() {
    let schema = TableChange { verb: "schema".into(), tail: "+1 column".into(), ..TableChange::default() };
    let clauses = vec![appended("orders", 3000), Clause::of_change(&schema, "shop", "items")];
    assert_eq!(text(clauses), "append +3,000 rows shop.orders; schema shop.items +1 column");
    let created = Clause::of_object("create", ObjectKind::Table, "shop", "x");
    assert_eq!(
        text(vec![created.with_rows(Rows { added: 1_234_567, ..Rows::default() })]),
        "create table shop.x +1,234,567 rows"
    );
    let renamed = Clause::of_object("rename", ObjectKind::View, "a.b", "v").to("c", "w");
    assert_eq!(text(vec![renamed]), "rename view a.b.v to c.w");
    assert_eq!(text(vec![appended("one", 1)]), "append +1 row shop.one");
    assert_eq!(text(Vec::new()), "");
}

#[test]
fn many_objects_are_counted_by_operation() {
    let mut clauses = vec![Clause::of_object("create", ObjectKind::Namespace, "shop", "")];
    clauses.extend((0..1200).map(|i| Clause::of_object("create", ObjectKind::Table, "shop", &format!("t{i}"))));
    clauses.extend((0..40).map(|i| appended(&format!("o{i}"), 25_000)));
    clauses.push(Clause::of_object("drop", ObjectKind::View, "shop", "v"));
    assert_eq!(
        text(clauses),
        "create namespace shop; create 1,200 tables; append +1,000,000 rows in 40 tables; drop view shop.v"
    );
    let counts = [(ObjectKind::Namespace, 1), (ObjectKind::Table, 1200), (ObjectKind::View, 0)];
    assert_eq!(Summary::of_counts("register", counts).as_str(), "register 1 namespace, 1,200 tables");
}

/// Special characters in names are quoted or escaped. Otherwise the log would say that a table was dropped if a table
/// is named `a; drop table shop.b`. A name may also contain a character that reverses the direction of the following
/// text, or an escape sequence of a terminal.
#[test]
fn names_look_like_neither_clauses_nor_terminal_commands() {
    let drop = |name: &str| text(vec![Clause::of_object("create", ObjectKind::Table, "shop", name)]);
    assert_eq!(drop("a; drop table shop.b"), r#"create table shop."a; drop table shop.b""#);
    assert_eq!(drop("a\"; x"), r#"create table shop."a\"; x""#);
    assert_eq!(drop("x\u{202e}gnp"), r#"create table shop."x\u{202e}gnp""#);
    assert_eq!(drop("\u{9b}31m"), r#"create table shop."\u{9b}31m""#);
    assert_eq!(drop("[red]"), r#"create table shop."[red]""#);
    assert_eq!(drop("b.c"), r#"create table shop."b.c""#);
    assert_eq!(drop("größe_東京-1"), "create table shop.größe_東京-1");
    let space = Clause::of_object("drop", ObjectKind::Namespace, "new york", "");
    assert_eq!(text(vec![space]), r#"drop namespace "new york""#);
}

#[test]
fn a_summary_with_long_names_is_short() {
    let long = "東".repeat(3000);
    let clauses = vec![Clause::of_object("rename", ObjectKind::Table, &long, &long).to(&long, &long); 4];
    let summary = text(clauses);
    assert!(summary.len() <= SUMMARY_MAX_SIZE_BYTES, "{}", summary.len());
    assert!(summary.starts_with("rename table 東東") && summary.ends_with('…'), "{summary}");
}
