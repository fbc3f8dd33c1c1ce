from tests.docs.reference import FOLDER, pages

FOLDER.mkdir(exist_ok=True)
for name, content in pages().items():
    (FOLDER / name).write_text(content, encoding="utf-8")
    print(FOLDER / name)
